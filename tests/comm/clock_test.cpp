#include "cifar_mpi/comm/clock.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <vector>

#include "cifar_mpi/base/clock.hpp"
#include "support/mpi_world.hpp"

namespace cifar_mpi::comm {
namespace {

using test::test_world;

/// A clock `ahead` of rank 0's that is queried over a network with irregular delays.
std::vector<ClockProbe> probe(std::int64_t ahead, std::int64_t begin, std::mt19937& random) {
  std::exponential_distribution<double> delay(1.0 / 20'000.0);
  std::vector<ClockProbe> probes;
  for (std::int64_t now = begin; probes.size() < 32;) {
    const auto there = 3'000 + static_cast<std::int64_t>(delay(random));
    const auto back = 2'000 + static_cast<std::int64_t>(delay(random));
    probes.push_back({now, now + there + ahead, now + there + back});
    now += there + back + 500;
  }
  return probes;
}

TEST(Clock, IsReadFromTheShortestTripAndNoFartherOffThanItSays) {
  std::mt19937 random(7);
  for (const std::int64_t ahead : {std::int64_t{0}, std::int64_t{-40'000}, std::int64_t{1} << 50}) {
    for (int trial = 0; trial < 100; ++trial) {
      const std::vector<ClockProbe> probes = probe(ahead, 1'000'000'000, random);
      const ClockReading reading = read_clock(probes);
      EXPECT_LE(std::abs(reading.offset + ahead), reading.uncertainty);
      for (const ClockProbe& p : probes) EXPECT_LE(reading.uncertainty, (p.received - p.asked + 1) / 2);
    }
  }
  const std::vector<ClockProbe> probes{{0, 1100, 900}, {1000, 2010, 1021}, {2000, 3000, 2400}};
  const ClockReading reading = read_clock(probes);
  EXPECT_EQ(reading.at, 2010);
  EXPECT_EQ(reading.offset, -1000);
  EXPECT_EQ(reading.uncertainty, 11);
}

TEST(Clock, IsTranslatedEvenlyBetweenTwoReadings) {
  // It runs 1e-5 too fast.
  const ClockTranslation drift{{1'000'000, -5'000, 300}, {101'000'000, -6'000, 200}};
  EXPECT_EQ(drift.to_rank_zero(1'000'000), 995'000);
  EXPECT_EQ(drift.to_rank_zero(51'000'000), 50'994'500);
  EXPECT_EQ(drift.to_rank_zero(101'000'000), 100'994'000);
  EXPECT_EQ(drift.uncertainty(), 300);
  std::int64_t last = 0;
  for (std::int64_t t = 1'000'000; t < 1'100'000; t += 7) {
    EXPECT_GT(drift.to_rank_zero(t), last) << "what came later stays later";
    last = drift.to_rank_zero(t);
  }
  const std::int64_t far = std::int64_t{1} << 58;
  EXPECT_EQ((ClockTranslation{{far, 12, 0}, {far + 10, 12, 0}}).to_rank_zero(far + 3), far + 15);
  EXPECT_EQ((ClockTranslation{{50, 7, 1}, {50, 9, 1}}).to_rank_zero(50), 59) << "the later one counts";
}

TEST(Clock, IsOneOnAHost) {
  const std::int64_t before = steady_nanoseconds();
  const ClockReading reading = compare_clocks(test_world());
  EXPECT_GE(reading.at, before);
  EXPECT_LE(reading.at, steady_nanoseconds());
  EXPECT_EQ(reading.offset, 0);
  EXPECT_EQ(reading.uncertainty, 0);
}

TEST(World, CollectsWhatEveryRankHas) {
  const World& world = test_world();
  for (const std::size_t unit : {0u, 1u, 100'000u}) {
    const auto own = static_cast<std::size_t>(world.rank());
    const std::vector<std::byte> mine(unit * own, static_cast<std::byte>(own));
    const std::vector<std::vector<std::byte>> all = world.collect(mine);
    if (world.rank() != 0) {
      EXPECT_TRUE(all.empty());
      continue;
    }
    ASSERT_EQ(all.size(), static_cast<std::size_t>(world.size()));
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      EXPECT_EQ(all[rank], std::vector<std::byte>(unit * rank, static_cast<std::byte>(rank)));
  }
}

}  // namespace
}  // namespace cifar_mpi::comm
