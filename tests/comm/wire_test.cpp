#include <gtest/gtest.h>
#include <sched.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/base/bf16.hpp"
#include "cifar_mpi/base/random.hpp"
#include "comm/collectives.hpp"
#include "comm/staging_buffer.hpp"
#include "support/mpi_world.hpp"

/// Effects of the 16-bit wire on sums, and where it is rejected.
namespace cifar_mpi::comm {
namespace {

using test::test_world;

constexpr double kUnit = 1.0 / 256;  // of bf16
constexpr std::size_t kCount = 100'003;

int world_size() { return test_world().size(); }

/// Values between 2^-6 and 2^6, most of them with more digits than bf16 has; half of the arrays of one sign.
float wire_value(int rank, std::size_t i) {
  const Random4 bits = random4(static_cast<std::uint64_t>(rank), RandomPurpose::synthetic, i, 7);
  const float size = (0.5f + uniform01(bits[0])) * std::exp2(static_cast<float>(bits[1] % 12) - 6.0f);
  return i % 2 == 0 && bits[2] % 2 == 0 ? -size : size;
}

/// Sums `kCount` values of every rank with the first `exact` of them as fp32.
std::vector<float> sum(const std::string& name, const Nodes& nodes, std::size_t exact) {
  const auto collective = make_collective(name, test_world(), nodes, Wire::bf16);
  const Buffer buffer = collective->allocate(kCount * sizeof(float));
  const std::span<float> data = buffer.span<float>();
  const engine::Task task = collective->all_reduce("sum", data, exact);
  for (std::size_t i = 0; i < kCount; ++i) data[i] = wire_value(test_world().rank(), i);
  engine::Lane lane;
  task.start(lane);
  while (!task.poll()) sched_yield();
  return {data.begin(), data.end()};
}

Nodes single_node() { return {std::vector<int>(static_cast<std::size_t>(world_size()), 0)}; }

/// Ranks 0, 2, 4, … on the first node, the others on the second.
Nodes two_nodes() {
  Nodes nodes;
  for (int r = 0; r < world_size(); ++r) nodes.of_rank.push_back(r % 2);
  return nodes;
}

struct Deviation {
  double largest = 0.0;     ///< |sum - exact| / sum of magnitudes
  std::size_t rounded = 0;  ///< sums that are not the nearest fp32
};

/// The exact sum over all ranks and the sum of magnitudes, by place.
const std::vector<std::pair<double, double>>& exact_sums() {
  static const std::vector<std::pair<double, double>> sums = [] {
    std::vector<std::pair<double, double>> made(kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      for (int r = 0; r < world_size(); ++r) {
        const double value = wire_value(r, i);
        made[i].first += value;
        made[i].second += std::abs(value);
      }
    }
    return made;
  }();
  return sums;
}

Deviation deviation(const std::vector<float>& sums, std::size_t begin, std::size_t end) {
  Deviation found;
  for (std::size_t i = begin; i < end; ++i) {
    const auto [exact, magnitude] = exact_sums()[i];
    found.largest = std::max(found.largest, std::abs(sums[i] - exact) / magnitude);
    found.rounded += sums[i] != static_cast<float>(exact) ? 1 : 0;
  }
  return found;
}

/// As derived at Wire.
double bound(int roundings) {
  return std::pow(1.0 + kUnit, roundings) * std::pow(1.0 + std::exp2(-24), world_size() - 1) - 1.0;
}

int doubling_roundings() {
  const auto p = static_cast<unsigned>(world_size());
  return std::bit_width(p) - 1 + (std::has_single_bit(p) ? 0 : 2);
}

TEST(Bf16Wire, KeepsTheSumsWithinTheDerivedBound) {
  if (world_size() == 1) GTEST_SKIP() << "needs 2 ranks or more";
  const auto expect = [](const std::vector<float>& sums, int roundings, const char* what) {
    const Deviation found = deviation(sums, 0, kCount);
    EXPECT_LE(found.largest, bound(roundings)) << what;
    // Most values are no bf16 numbers, so something was compressed.
    EXPECT_GT(found.rounded, kCount / 2) << what;
  };
  expect(sum("ring", single_node(), 0), world_size(), "ring");
  expect(sum("doubling", single_node(), 0), doubling_roundings(), "doubling");
  expect(sum("two-level", two_nodes(), 0), 2, "two-level");
}

TEST(Bf16Wire, LeavesTheHeadOfTheArrayExact) {
  if (world_size() == 1) GTEST_SKIP() << "needs 2 ranks or more";
  // The whole array, none of it, and a part that ends inside a piece and a slice.
  for (const std::size_t exact : {std::size_t{0}, std::size_t{1}, std::size_t{40'001}, kCount}) {
    for (const char* name : {"ring", "doubling", "two-level"}) {
      const std::vector<float> sums = sum(name, two_nodes(), exact);
      // P-1 additions in fp32 and no rounding to bf16.
      EXPECT_LE(deviation(sums, 0, exact).largest, bound(0)) << name << ", " << exact;
      if (exact == kCount) continue;
      EXPECT_GT(deviation(sums, exact, kCount).largest, kUnit / 16) << name << ", " << exact;
    }
  }
}

TEST(Bf16Wire, KeepsItsHeadInFp32AndPacksTheRest) {
  // A step asks for exactly the control block: see AllReduceUpdate.SumsTheControlBlockWithTheFirstBucket.
  std::vector<float> values(10, 1.0f + 0x1p-20f);
  StagingBuffer image(Wire::bf16, values, 4);
  EXPECT_EQ(image.bytes({0, 10}), 4 * 4 + 6 * 2u);
  EXPECT_EQ(image.bytes({2, 6}), 2 * 4 + 2 * 2u);
  EXPECT_EQ(image.bytes({5, 9}), 4 * 2u);
  image.round({0, 10});
  EXPECT_EQ(values[3], 1.0f + 0x1p-20f);
  EXPECT_EQ(values[4], 1.0f);
}

TEST(Bf16Wire, CutsAnArrayAnywhere) {
  // Any cut into ranges packs to the same bytes, in a row.
  std::vector<float> whole(101), pieces(101);
  for (std::size_t i = 0; i < whole.size(); ++i) whole[i] = pieces[i] = wire_value(3, i);
  StagingBuffer one(Wire::bf16, whole, 17);
  StagingBuffer many(Wire::bf16, pieces, 17);
  one.round({0, 101});
  std::size_t begin = 0;
  for (const std::size_t end : {std::size_t{5}, std::size_t{16}, std::size_t{40}, std::size_t{101}}) {
    many.round({begin, end});
    EXPECT_EQ(many.at({begin, end}), many.at({0, 101}) + many.bytes({0, begin}));
    begin = end;
  }
  EXPECT_EQ(std::memcmp(one.at({0, 101}), many.at({0, 101}), one.bytes({0, 101})), 0);
  EXPECT_EQ(whole, pieces);
  // The array equals the received image, added in one pass or in two.
  std::vector<float> other(101);
  StagingBuffer copy(Wire::bf16, other, 17);
  std::memcpy(copy.at({0, 101}), one.at({0, 101}), one.bytes({0, 101}));
  copy.accept({0, 50});
  copy.accept({50, 101});
  EXPECT_EQ(other, whole);
  copy.add({0, 101}, one.at({0, 101}));
  copy.round({0, 101});
  many.add_and_round({0, 101}, one.at({0, 101}));
  EXPECT_EQ(other, pieces);
  EXPECT_EQ(std::memcmp(copy.at({0, 101}), many.at({0, 101}), one.bytes({0, 101})), 0);
}

TEST(Bf16Wire, CarriesWhatIsNotFinite) {
  if (world_size() == 1) GTEST_SKIP() << "needs 2 ranks or more";
  for (const char* name : {"ring", "doubling"}) {
    const auto collective = make_collective(name, test_world(), single_node(), Wire::bf16);
    const Buffer buffer = collective->allocate(3 * sizeof(float));
    const std::span<float> data = buffer.span<float>();
    const engine::Task task = collective->all_reduce("sum", data, 0);
    data[0] = test_world().rank() == 0 ? std::numeric_limits<float>::infinity() : 1.0f;
    data[1] = test_world().rank() == 0 ? std::bit_cast<float>(0x7F800001u) : 1.0f;  // a NaN
    data[2] = test_world().rank() == 0 ? std::numeric_limits<float>::max() : 0.0f;  // beyond bf16
    engine::Lane lane;
    task.start(lane);
    while (!task.poll()) sched_yield();
    EXPECT_EQ(data[0], std::numeric_limits<float>::infinity()) << name;
    EXPECT_TRUE(std::isnan(data[1])) << name;
    EXPECT_EQ(data[2], std::numeric_limits<float>::infinity()) << name;
  }
}

TEST(Bf16Wire, IsRefusedWhereItCannotBe) {
  for (const char* name : {"window", "mpi"}) {
    try {
      make_collective(name, test_world(), Wire::bf16);
      FAIL() << name << " was made";
    } catch (const AgreedError& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      for (const char* part : {name, "--wire bf16", "ring, doubling"}) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      }
    }
  }
}

TEST(Bf16Wire, IsLeftOutOnOneNodeWithANote) {
  for (const char* name : {"auto", "two-level"}) {
    const auto collective = make_collective(name, test_world(), single_node(), Wire::bf16);
    EXPECT_NE(collective->note().find("--wire bf16 has no effect"), std::string::npos) << collective->note();
    EXPECT_EQ(collective->name().find("bf16"), std::string::npos) << collective->name();
    if (world_size() == 1) continue;
    const auto across = make_collective(name, test_world(), two_nodes(), Wire::bf16);
    EXPECT_EQ(across->note(), "");
    EXPECT_NE(across->name().find("bf16"), std::string::npos) << across->name();
  }
  EXPECT_EQ(make_collective("ring", test_world(), single_node(), Wire::bf16)->name(), "ring in bf16");
}

}  // namespace
}  // namespace cifar_mpi::comm
