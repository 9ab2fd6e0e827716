#include <gtest/gtest.h>
#include <sched.h>

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "cifar_mpi/base/error.hpp"
#include "comm/collectives.hpp"
#include "support/mpi_world.hpp"

/// The address sanitizer ends a program that asks for too much memory, unless an option forbids it.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }

/// The window where it is impossible: on several nodes, and with little shared memory.
namespace cifar_mpi::comm {
namespace {

using test::test_world;

Nodes one_node() { return {std::vector<int>(static_cast<std::size_t>(test_world().size()), 0)}; }

bool last_rank() { return test_world().rank() == test_world().size() - 1; }

void expect_sum_of_ones(const engine::Task& task, std::span<float> data) {
  for (float& x : data) x = 1.0f;
  engine::Lane lane;
  task.start(lane);
  while (!task.poll()) sched_yield();
  for (const float x : data) ASSERT_EQ(x, static_cast<float>(test_world().size()));
}

/// A window where only the last rank finds little shared memory: `bytes` from the second query on.
std::unique_ptr<Collective> window_that_finds(std::uint64_t bytes) {
  return make_node_window("window", test_world(), one_node(), Wire::fp32, [bytes, asked = 0]() mutable {
    const bool short_now = ++asked > 1 && last_rank();
    return SharedMemory{"/a/folder", short_now ? bytes : std::uint64_t{1} << 40};
  });
}

TEST(Window, IsRefusedAcrossNodes) {
  if (test_world().size() == 1) GTEST_SKIP() << "needs 2 ranks or more";
  Nodes nodes = one_node();
  nodes.of_rank.back() = 1;
  try {
    make_collective("window", test_world(), nodes);
    FAIL() << "a window over two nodes was made";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_NE(std::string_view(error.what()).find("two-level"), std::string_view::npos) << error.what();
  }
}

TEST(Window, GoesOnAsRingOnAllRanksWhenOneLacksSharedMemory) {
  const auto window = window_that_finds(1 << 20);
  const Buffer first = window->allocate(1000 * sizeof(float));
  EXPECT_EQ(window->name(), "window");
  EXPECT_EQ(window->note(), "");
  const Buffer second = window->allocate(1000 * sizeof(float));
  EXPECT_EQ(window->name(), "window as ring");
  for (const char* part : {"/a/folder", "1 MiB are free", "ring"}) {
    EXPECT_NE(window->note().find(part), std::string::npos) << window->note();
  }
  // Both kinds of memory can be summed, one after the other.
  const engine::Task one = window->all_reduce("one", first.span<float>(), 0);
  const engine::Task two = window->all_reduce("two", second.span<float>(), 0);
  for (int round = 0; round < 3; ++round) {
    expect_sum_of_ones(one, first.span<float>());
    expect_sum_of_ones(two, second.span<float>());
  }
}

TEST(Window, TellsTheSameNoteOnEveryRank) {
  const auto window = window_that_finds(0);
  const Buffer first = window->allocate(4);
  const Buffer second = window->allocate(4);
  std::string note = window->note();
  test_world().broadcast(note);
  EXPECT_EQ(note, window->note());
}

TEST(Window, RefusesArraysThatAreNotItsOwn) {
  const auto window = make_collective("window", test_world());
  const Buffer own = window->allocate(400);
  const Buffer foreign = allocate_host(400);
  EXPECT_THROW(window->all_reduce("sum", foreign.span<float>(), 0), std::logic_error);
}

TEST(SharedMemory, IsFreeSomewhere) {
  const SharedMemory found = shared_memory();
  EXPECT_FALSE(found.place.empty());
  EXPECT_GT(found.free_bytes, 0u) << found.place;
}

TEST(SharedMemory, IsNeededForMoreThanTheArrays) {
  EXPECT_GT(shared_memory_needed(4, 1 << 20), std::uint64_t{4} << 20);
}

TEST(Collectives, FailTogetherWhenOneRankHasNoMemory) {
  // No rank of a real program uses another size; here it stands for a rank whose node is full.
  constexpr std::size_t kTooMuch = std::size_t{1} << 60;
  for (const char* name : {"ring", "doubling", "mpi"}) {
    const auto collective = make_collective(name, test_world());
    EXPECT_THROW(collective->allocate(last_rank() ? kTooMuch : 400), AgreedError) << name;
    EXPECT_NO_THROW(collective->allocate(400)) << name;
  }
}

}  // namespace
}  // namespace cifar_mpi::comm
