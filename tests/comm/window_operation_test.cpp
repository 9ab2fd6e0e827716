#include "comm/window_operation.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

#include "cifar_mpi/base/buffer.hpp"
#include "support/mpi_world.hpp"

/// Threads of one process stand for the ranks of a node, on ordinary memory: the same code, but the thread
/// sanitizer sees every access (preset tsan).
namespace cifar_mpi::comm {
namespace {

constexpr std::size_t kBytes = 24 << 10;
constexpr std::size_t kFirst = 1003;  // floats; two arrays in one block, with ends in mid-line
constexpr std::size_t kSecond = 4500;
constexpr int kRounds = 60;

float value(int rank, int round, std::size_t i) {
  return static_cast<float>((i * 5 + static_cast<std::size_t>(rank) * 11 + static_cast<std::size_t>(round)) %
                            13);
}

/// The work of one rank: values in, all-reduce, sums out, and at once the values of the next round.
class Rank {
 public:
  Rank(int rank, int ranks, const std::vector<std::byte*>& parts)
      : rank_(rank), ranks_(ranks), block_(rank, parts, kBytes) {
    block_.memory.occupy();
  }

  /// The number of wrong sums.
  std::size_t run() {
    const WindowPlace place{ranks_, {}};
    float* const base = reinterpret_cast<float*>(block_.memory.data(rank_));
    const std::vector<std::span<float>> arrays{{base, kFirst}, {base + kFirst, kSecond}};
    std::vector<WindowOperation> runs;
    for (const std::span<float>& array : arrays) runs.emplace_back(place, block_, array, Wire::fp32, 0);
    std::size_t wrong = 0;
    for (int round = 0; round < kRounds; ++round) {
      for (const std::span<float>& array : arrays) {
        for (std::size_t i = 0; i < array.size(); ++i) array[i] = value(rank_, round, i);
      }
      for (std::size_t a = 0; a < arrays.size(); ++a) {
        runs[a].start();
        while (!runs[a].poll()) sched_yield();
        for (std::size_t i = 0; i < arrays[a].size(); ++i) wrong += arrays[a][i] != sum(round, i) ? 1 : 0;
      }
    }
    return wrong;
  }

 private:
  float sum(int round, std::size_t i) const {
    float total = 0;
    for (int r = 0; r < ranks_; ++r) total += value(r, round, i);
    return total;
  }

  int rank_;
  int ranks_;
  WindowBlock block_;
};

TEST(WindowOperation, KeepsThreadsApartAsItKeepsRanks) {
  if (test::test_world().size() != 1) GTEST_SKIP() << "needs exactly 1 rank";
  for (const int ranks : {1, 2, 3, 5}) {
    std::vector<Buffer> memory;
    std::vector<std::byte*> parts;
    for (int r = 0; r < ranks; ++r) {
      memory.push_back(allocate_host(NodeMemory::footprint(kBytes) + 128));
      std::byte* const begin = memory.back().data();
      parts.push_back(begin + (128 - reinterpret_cast<std::uintptr_t>(begin) % 128) % 128);
    }
    std::vector<std::unique_ptr<Rank>> all;
    for (int r = 0; r < ranks; ++r) all.push_back(std::make_unique<Rank>(r, ranks, parts));
    std::atomic<std::size_t> wrong{0};
    std::vector<std::thread> threads;
    for (const auto& rank : all) threads.emplace_back([&] { wrong += rank->run(); });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0u) << ranks << " ranks";
  }
}

}  // namespace
}  // namespace cifar_mpi::comm
