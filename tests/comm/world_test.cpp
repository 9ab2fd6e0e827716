#include "cifar_mpi/comm/world.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <new>
#include <optional>
#include <stdexcept>

#include "cifar_mpi/base/text.hpp"
#include "support/errors.hpp"
#include "support/mpi_world.hpp"

namespace cifar_mpi::comm {
namespace {

using test::test_world;

/// The error that the other ranks get from `rank`.
std::string told(const std::string& text, int rank) {
  return rank == 0 ? text : concat(text, " (on rank ", rank, ", host ", test_world().host(), ")");
}

TEST(World, KnowsItsPlace) {
  const World& world = test_world();
  EXPECT_GE(world.rank(), 0);
  EXPECT_LT(world.rank(), world.size());
  EXPECT_LT(world.node_rank(), world.node_size());
  EXPECT_LE(world.node_size(), world.size());
  EXPECT_FALSE(world.host().empty());
  EXPECT_FALSE(World::library().empty());
  EXPECT_GE(world.fair_threads(), 1);
  EXPECT_GE(world.unused_cores(), 0);
}

TEST(World, HasEveryRankOnce) {
  std::vector<double> seen(static_cast<std::size_t>(test_world().size()), 0.0);
  seen[static_cast<std::size_t>(test_world().rank())] = 1.0;
  test_world().sum(seen);
  for (const double count : seen) EXPECT_EQ(count, 1.0);
}

TEST(World, DoesNotStartTwice) {
  int argc = 0;
  char** argv = nullptr;
  EXPECT_THROW(World(argc, argv), Error);
}

TEST(World, HasItsFirstRanksAsAWorldOfTheirOwn) {
  const World& world = test_world();
  for (int ranks = 1; ranks <= world.size(); ++ranks) {
    const std::unique_ptr<World> first = World::first(world, ranks);
    ASSERT_EQ(first != nullptr, world.rank() < ranks);
    if (first == nullptr) continue;
    EXPECT_EQ(first->rank(), world.rank());
    EXPECT_EQ(first->size(), ranks);
    EXPECT_EQ(first->node_rank(), world.rank()) << "all are on one host";
    EXPECT_EQ(first->node_size(), ranks);
    EXPECT_EQ(first->hosts().size(), static_cast<std::size_t>(ranks));
    EXPECT_EQ(first->gather(2.0), std::vector<double>(static_cast<std::size_t>(ranks), 2.0));
    std::optional<Error> mine;
    if (world.rank() == ranks - 1) mine.emplace(ErrorKind::device, "no GPU");
    EXPECT_THROW(first->agree(mine), AgreedError);
  }
  EXPECT_NO_THROW(world.agree(std::nullopt)) << "what fails in a part is its own business";
}

TEST(Vote, PassesWhenAllIsWell) { EXPECT_NO_THROW(test_world().agree(std::nullopt)); }

TEST(Vote, BringsTheLowestFailingRanksErrorToAll) {
  const World& world = test_world();
  constexpr ErrorKind kKinds[] = {ErrorKind::data, ErrorKind::io, ErrorKind::device, ErrorKind::checkpoint};
  for (int lowest = 0; lowest < world.size(); ++lowest) {
    std::optional<Error> mine;
    if (world.rank() >= lowest)
      mine.emplace(kKinds[world.rank() % 4], concat("rank ", world.rank(), " has no file"));
    try {
      world.agree(mine);
      FAIL() << "the vote passed";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kKinds[lowest % 4]);
      EXPECT_EQ(error.what(), told(concat("rank ", lowest, " has no file"), lowest));
    }
  }
}

TEST(Vote, BringsAnEmptyTextToAll) {
  const bool last = test_world().rank() == test_world().size() - 1;
  EXPECT_THROW(test_world().agree(last ? std::optional(Error(ErrorKind::io, "")) : std::nullopt), Error);
}

/// The kind and text on this rank when `phase` runs on the last rank only.
Error outcome(const std::function<void()>& phase) {
  const World& world = test_world();
  try {
    world.together([&] {
      if (world.rank() == world.size() - 1) phase();
    });
  } catch (const Error& error) {
    return error;
  }
  return {ErrorKind::stopped, "nothing was thrown"};
}

TEST(Vote, TurnsWhatAPhaseThrowsIntoEveryRanksError) {
  const int last = test_world().size() - 1;
  const Error data = outcome([] { throw Error(ErrorKind::data, "torn"); });
  EXPECT_EQ(data.kind(), ErrorKind::data);
  EXPECT_EQ(data.what(), told("torn", last));
  EXPECT_EQ(outcome([] { throw std::bad_alloc(); }).kind(), ErrorKind::device);
  const Error internal = outcome([] { throw std::logic_error("impossible"); });
  EXPECT_EQ(internal.kind(), ErrorKind::internal);
  EXPECT_EQ(internal.what(), told("impossible", last));
  EXPECT_EQ(outcome([] {}).kind(), ErrorKind::stopped);
}

/// The message of `require_equal` on all ranks; empty when there is no difference.
std::string difference(const RunFingerprint& mine) {
  return refusal(ErrorKind::usage,
                 [&] { test_world().require_equal(ErrorKind::usage, mine, "give all the same"); });
}

TEST(RequireEqual, PassesWhereAllRanksHaveTheSame) {
  EXPECT_EQ(difference({}), "");
  EXPECT_EQ(difference({{"--lr", "0.1"}, {"empty", ""}, {"kernels", "a\nb"}}), "");
  const bool first = test_world().rank() == 0;
  const std::pair<std::string, std::string> a{"a", "1"}, b{"b", "2"};
  EXPECT_EQ(difference(first ? RunFingerprint{a, b} : RunFingerprint{b, a}), "")
      << "the order of items says nothing";
}

TEST(RequireEqual, NamesItemRankHostAndBothValues) {
  const World& world = test_world();
  const std::string& host = world.host();  // the tests run on one
  const std::string zero = concat(" on rank 0 (", host, "); give all the same");
  for (int odd = 1; odd < world.size(); ++odd) {
    const bool mine = world.rank() == odd;
    const std::string where = concat(" on rank ", odd, " (", host, "), but ");
    EXPECT_EQ(difference({{"--lr", "0.1"}, {"--seed", mine ? "2" : "1"}, {"last", mine ? "x" : "y"}}),
              concat("--seed is 2", where, "1", zero));
    EXPECT_EQ(difference(mine ? RunFingerprint{} : RunFingerprint{{"--lr", "0.1"}}),
              concat("--lr is missing", where, "0.1", zero));
    EXPECT_EQ(difference(mine ? RunFingerprint{{"--lr", "a\nb"}} : RunFingerprint{}),
              concat("--lr is a b", where, "missing", zero));
  }
  if (world.size() > 2) {
    const std::string lowest = difference({{"rank", std::to_string(world.rank())}});
    EXPECT_EQ(lowest, concat("rank is 1 on rank 1 (", host, "), but 0", zero));
  }
}

TEST(World, SumsToTheSameBitsOnEveryRank) {
  std::vector<double> values(1001);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = 0.1 * static_cast<double>(test_world().rank() + 1) / static_cast<double>(i + 1);
  }
  test_world().sum(values);
  std::vector<double> first = values;
  test_world().broadcast(std::as_writable_bytes(std::span(first)));
  EXPECT_EQ(std::memcmp(first.data(), values.data(), values.size() * sizeof(double)), 0);
  const double ranks = test_world().size();
  EXPECT_NEAR(values[0], 0.1 * ranks * (ranks + 1) / 2,
              1e-15 * ranks * ranks);  // P roundings of values below P
  test_world().sum({});
}

TEST(World, BroadcastsRankZerosText) {
  for (const std::size_t length : {0u, 1u, 100'000u}) {
    std::string text(test_world().rank() == 0 ? length : 17, test_world().rank() == 0 ? 'a' : 'b');
    test_world().broadcast(text);
    EXPECT_EQ(text, std::string(length, 'a'));
  }
}

TEST(World, BroadcastsRankZerosValues) {
  const bool first = test_world().rank() == 0;
  std::vector<int> values(first ? 3 : 7, test_world().rank() + 5);
  test_world().broadcast(values);
  EXPECT_EQ(values, std::vector<int>(3, 5));
  std::optional<std::uint64_t> step;
  if (first) step = 1ull << 60 | 1;
  test_world().broadcast(step);
  EXPECT_EQ(step, 1ull << 60 | 1);
  test_world().broadcast(std::span<std::byte>());
}

TEST(World, GathersAValueOrATextOfEveryRankByRank) {
  const int rank = test_world().rank(), size = test_world().size();
  const auto large = [](int of) { return ~std::uint64_t{0} - static_cast<std::uint64_t>(of); };
  const std::vector<std::uint64_t> numbers = test_world().gather(large(rank));
  const std::vector<std::string> texts =
      test_world().gather(std::string(static_cast<std::size_t>(rank), 'a'));
  ASSERT_EQ(numbers.size(), static_cast<std::size_t>(size));
  ASSERT_EQ(texts.size(), numbers.size());
  for (int of = 0; of < size; ++of) {
    EXPECT_EQ(numbers[static_cast<std::size_t>(of)], large(of));
    EXPECT_EQ(texts[static_cast<std::size_t>(of)], std::string(static_cast<std::size_t>(of), 'a'));
  }
  EXPECT_TRUE(test_world().any(rank == size - 1));
  EXPECT_FALSE(test_world().any(false));
}

}  // namespace
}  // namespace cifar_mpi::comm
