#include "cpu/parallel.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "cpu/task_runs.hpp"

namespace cifar_mpi::cpu {
namespace {

TEST(Parallel, DoesEachItemOnce) {
  for (const int threads : {1, 2, 3, 7, 64}) {
    const testing::Threads with(threads);
    for (const std::ptrdiff_t items : {0, 1, 2, 63, 64, 1000}) {
      std::vector<int> done(static_cast<std::size_t>(items));
      for (int time = 1; time <= 20; ++time) {
        parallel_for(items, [&](std::ptrdiff_t i) { ++done[static_cast<std::size_t>(i)]; });
        EXPECT_EQ(std::count(done.begin(), done.end(), time), items) << threads << " threads, time " << time;
      }
    }
  }
}

TEST(Parallel, GivesArraysInStretchesThatEndWithThem) {
  const testing::Threads with(3);
  for (const std::size_t count : {0u, 1u, 255u, 256u, 100'001u}) {
    std::vector<int> done(count);
    parallel_values(count, [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) ++done[i];
    });
    EXPECT_EQ(std::count(done.begin(), done.end(), 1), static_cast<std::ptrdiff_t>(count));
  }
}

TEST(Parallel, CutsPartsInTheSamePlacesForAnyNumberOfThreads) {
  for (const int threads : {1, 2, 5}) {
    const testing::Threads with(threads);
    std::vector<Range> parts(4);
    parallel_parts(10, 4, [&](int part, Range range) { parts[static_cast<std::size_t>(part)] = range; });
    EXPECT_EQ(parts[0].begin, 0);
    for (std::size_t part = 1; part < parts.size(); ++part) EXPECT_EQ(parts[part].begin, parts[part - 1].end);
    EXPECT_EQ(parts[3].end, 10);
  }
}

TEST(Parallel, NumbersThreadsBelowTheirCount) {
  const testing::Threads with(3);
  EXPECT_EQ(loop_thread(), 0);
  std::atomic<int> outside{0};
  parallel_for(1000, [&](std::ptrdiff_t) {
    if (loop_thread() < 0 || loop_thread() >= 3) ++outside;
  });
  EXPECT_EQ(outside, 0);
}

TEST(Parallel, CountsHowMuchLongerTheLongestThreadTakes) {
  EXPECT_EQ(slowdown(128, 64), 1.0);
  EXPECT_EQ(slowdown(128, 48), 3 * 48 / 128.0);
  EXPECT_EQ(slowdown(1, 8), 8.0);
  EXPECT_EQ(slowdown(0, 8), 1.0);
}

}  // namespace
}  // namespace cifar_mpi::cpu
