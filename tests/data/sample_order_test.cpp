#include "cifar_mpi/data/sample_order.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace cifar_mpi::data {
namespace {

constexpr int kRankCounts[] = {1, 2, 3, 4, 7};
constexpr std::uint64_t kSeed = 20261120;

TEST(ShardOf, CutsTheFileWithoutGapsAndEvenly) {
  for (const std::uint64_t total : {7u, 103u, 50000u}) {
    for (const int ranks : kRankCounts) {
      std::uint64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Shard part =
            shard_of(total, static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(ranks));
        EXPECT_EQ(part.first, next);
        EXPECT_GE(part.count, total / static_cast<std::uint64_t>(ranks));
        EXPECT_LE(part.count, total / static_cast<std::uint64_t>(ranks) + 1);
        next = part.first + part.count;
      }
      EXPECT_EQ(next, total);
    }
  }
}

TEST(Permuted, IsABijectionForEverySize) {
  std::vector<std::uint64_t> sizes{4095, 4096, 4097, 50000, 65537, 99991, 1 << 20};
  for (std::uint64_t n = 1; n <= 200; ++n) sizes.push_back(n);
  for (const std::uint64_t n : sizes) {
    std::vector<bool> seen(n, false);
    for (std::uint64_t i = 0; i < n; ++i) {
      const std::uint64_t place = permuted(i, n, {17, static_cast<std::uint32_t>(n)});
      ASSERT_LT(place, n);
      ASSERT_FALSE(seen[place]) << "n = " << n << ", index " << i;
      seen[place] = true;
    }
  }
}

TEST(Permuted, StaysBelowSizesThatNeedMoreThan32Bits) {
  const std::uint64_t n = (std::uint64_t{1} << 40) + 12345;
  for (std::uint64_t i = 0; i < 1000; ++i) EXPECT_LT(permuted(n - 1 - i * i, n, {1, 2}), n);
}

TEST(Permuted, DiffersFromKeyToKey) {
  // Two independent permutations agree at one position on average, with a spread of one.
  const std::uint64_t n = 10000;
  for (std::uint32_t key = 0; key < 20; ++key) {
    int equal = 0;
    for (std::uint64_t i = 0; i < n; ++i)
      equal += permuted(i, n, {key, 5}) == permuted(i, n, {key + 1, 5}) ? 1 : 0;
    EXPECT_LT(equal, 10) << key;
  }
}

TEST(Permuted, PutsEachIndexEverywhereAboutEquallyOften) {
  const std::uint64_t n = 12;
  const int keys = 24000;
  std::vector<int> count(n * n);
  for (int k = 0; k < keys; ++k) {
    const Random4 key = random4(kSeed, RandomPurpose::sample_order, static_cast<std::uint64_t>(k), 0);
    for (std::uint64_t i = 0; i < n; ++i) ++count[i * n + permuted(i, n, {key[0], key[1]})];
  }
  const double p = 1.0 / static_cast<double>(n);
  const double bound = 5.0 * std::sqrt(keys * p * (1.0 - p));  // five standard deviations of the binomial
  for (const int c : count) EXPECT_NEAR(c, keys * p, bound);
}

TEST(Permuted, DoesNotKeepNeighboursTogether) {
  const std::uint64_t n = 50000;
  int near = 0;
  for (std::uint64_t i = 0; i + 1 < n; ++i) {
    const auto here = static_cast<std::int64_t>(permuted(i, n, {3, 4}));
    const auto next = static_cast<std::int64_t>(permuted(i + 1, n, {3, 4}));
    near += std::abs(here - next) <= 50 ? 1 : 0;
  }
  const double p = 100.0 / static_cast<double>(n);  // 50 places to either side
  const double expected = p * static_cast<double>(n);
  EXPECT_NEAR(near, expected, 5.0 * std::sqrt(expected));
}

/// How often each (epoch, id) occurs in the first `passes` epochs of all ranks together.
std::vector<int> count_visits(Shuffle shuffle, std::uint64_t total, int ranks, int batch,
                              std::uint64_t passes) {
  std::vector<int> visits(total * passes);
  for (int rank = 0; rank < ranks; ++rank) {
    const SampleOrder order(shuffle, kSeed, total, rank, ranks, batch);
    const std::uint64_t steps = passes * total;  // more than enough
    for (std::uint64_t step = 0; step < steps; ++step) {
      for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(batch); ++i) {
        const SampleRef ref = order.at(step, i);
        EXPECT_LT(ref.local, order.held().count);
        EXPECT_EQ(ref.id, order.held().first + ref.local);
        if (ref.epoch < passes) ++visits[ref.epoch * total + ref.id];
      }
    }
  }
  return visits;
}

TEST(SampleOrder, VisitsEverySampleOncePerPass) {
  for (const Shuffle shuffle : {Shuffle::shard, Shuffle::global}) {
    for (const int ranks : kRankCounts) {
      for (const int count : count_visits(shuffle, 103, ranks, 5, 3)) {
        ASSERT_EQ(count, 1) << (shuffle == Shuffle::shard ? "shard" : "global") << ", " << ranks << " ranks";
      }
    }
  }
}

TEST(SampleOrder, GivesTheSameGlobalBatchesForEveryNumberOfRanks) {
  const std::uint64_t total = 1000, global_batch = 84;
  const SampleOrder alone(Shuffle::global, kSeed, total, 0, 1, static_cast<int>(global_batch));
  for (const int ranks : kRankCounts) {
    const int batch = static_cast<int>(global_batch) / ranks;
    for (std::uint64_t step = 0; step < 40; ++step) {
      for (std::uint64_t place = 0; place < global_batch; ++place) {
        const auto rank = static_cast<int>(place) / batch;
        const SampleOrder order(Shuffle::global, kSeed, total, rank, ranks, batch);
        const SampleRef ours = order.at(step, place % static_cast<std::uint64_t>(batch));
        const SampleRef whole = alone.at(step, place);
        ASSERT_EQ(ours.id, whole.id);
        ASSERT_EQ(ours.epoch, whole.epoch);
      }
    }
  }
}

TEST(SampleOrder, HoldsOnlyItsShardInShardMode) {
  for (int rank = 0; rank < 3; ++rank) {
    const SampleOrder order(Shuffle::shard, kSeed, 100, rank, 3, 10);
    const Shard part = shard_of(100, static_cast<std::uint64_t>(rank), 3);
    EXPECT_EQ(order.held().first, part.first);
    EXPECT_EQ(order.held().count, part.count);
  }
  EXPECT_EQ(SampleOrder(Shuffle::global, kSeed, 100, 1, 3, 10).held().count, 100u);
}

TEST(SampleOrder, ShufflesConsecutivePassesAndSeedsDifferently) {
  const std::uint64_t total = 5000;
  for (const Shuffle shuffle : {Shuffle::shard, Shuffle::global}) {
    const SampleOrder order(shuffle, kSeed, total, 0, 1, 100);
    const SampleOrder other(shuffle, kSeed + 1, total, 0, 1, 100);
    for (std::uint64_t pass = 0; pass < 5; ++pass) {
      int same_as_next = 0, same_as_other = 0;
      for (std::uint64_t i = 0; i < total; ++i) {
        same_as_next += order.at(0, pass * total + i).id == order.at(0, (pass + 1) * total + i).id ? 1 : 0;
        same_as_other += order.at(0, pass * total + i).id == other.at(0, pass * total + i).id ? 1 : 0;
      }
      EXPECT_LT(same_as_next, 10);  // one is expected, with a spread of one
      EXPECT_LT(same_as_other, 10);
    }
  }
}

}  // namespace
}  // namespace cifar_mpi::data
