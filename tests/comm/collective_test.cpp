#include "cifar_mpi/comm/collective.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>

#include "cifar_mpi/base/random.hpp"
#include "comm/collectives.hpp"
#include "support/allocation_count.hpp"
#include "support/errors.hpp"
#include "support/mpi_world.hpp"

namespace cifar_mpi::comm {
namespace {

using engine::Lane;
using engine::Task;
using test::test_world;

int ranks() { return test_world().size(); }
int rank() { return test_world().rank(); }

void finish(const Task& task) {
  while (!task.poll()) sched_yield();
}

void run(const Task& task) {
  Lane lane;
  task.start(lane);
  finish(task);
}

/// Inputs are small integers, different on every rank, so that sums are exact in any order, and in bf16 up to 32
/// ranks. They repeat after this many elements.
constexpr std::size_t kPeriod = 17;

float small_integer(int of_rank, std::size_t i, int round) {
  const auto shift = static_cast<std::size_t>(of_rank) * 13 + static_cast<std::size_t>(round) * 3;
  return static_cast<float>((i * 7 + shift) % kPeriod) - 8;
}

void fill(std::span<float> data, int round) {
  for (std::size_t i = 0; i < data.size(); ++i) {
    data[i] = i < kPeriod ? small_integer(rank(), i, round) : data[i - kPeriod];
  }
}

/// The number of elements that are not the exact sum.
std::size_t wrong_sums(std::span<const float> data, int round) {
  std::array<float, kPeriod> sums{};
  for (std::size_t i = 0; i < kPeriod; ++i) {
    for (int r = 0; r < ranks(); ++r) sums[i] += small_integer(r, i, round);
  }
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < data.size(); ++i) wrong += data[i] != sums[i % kPeriod] ? 1 : 0;
  return wrong;
}

/// Waits up to 2 ms, with a different time on every rank and in every round.
void dawdle(int round) {
  const Random4 bits = random4(1, RandomPurpose::synthetic, static_cast<std::uint64_t>(rank()),
                               static_cast<std::uint32_t>(round));
  std::this_thread::sleep_for(std::chrono::microseconds(uniform_below(bits[0], 2000)));
}

void fill_randomly(std::span<float> data, int round) {
  for (std::size_t i = 0; i < data.size(); ++i) {
    const Random4 bits = random4(static_cast<std::uint64_t>(rank()), RandomPurpose::synthetic, i,
                                 static_cast<std::uint32_t>(round));
    data[i] = (uniform01(bits[0]) - 0.5f) * (bits[1] % 2 == 0 ? 1.0f : 1e-6f);
  }
}

/// A collective on emulated nodes: this machine's ranks behave as if they were on several.
struct Choice {
  std::string name;
  std::string layout;
  Wire wire = Wire::fp32;
};

Nodes lay_out(std::string_view layout, int count) {
  Nodes nodes;
  for (int r = 0; r < count; ++r) {
    int node = 0;
    if (layout == "Halves") node = r < (count + 1) / 2 ? 0 : 1;
    if (layout == "LastAlone") node = r + 1 < count || count == 1 ? 0 : 1;
    if (layout == "FirstAlone") node = r == 0 ? 0 : 1;
    if (layout == "Alternating") node = r % 2;
    if (layout == "EachAlone") node = r;
    nodes.of_rank.push_back(node);
  }
  return nodes;
}

std::unique_ptr<Collective> make(const Choice& choice) {
  return make_collective(choice.name, test_world(), lay_out(choice.layout, ranks()), choice.wire);
}

class AllReduce : public testing::TestWithParam<Choice> {
 protected:
  std::unique_ptr<Collective> collective_ = make(GetParam());
};

TEST_P(AllReduce, KnowsItsNameAndRanks) {
  EXPECT_TRUE(collective_->name().starts_with(GetParam().name)) << collective_->name();
  EXPECT_EQ(collective_->ranks(), ranks());
}

TEST_P(AllReduce, SumsExactlyAtEverySize) {
  const std::size_t p = static_cast<std::size_t>(ranks());
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, p - 1, p, p + 1, std::size_t{1001},
                              std::size_t{4096}, std::size_t{1'000'003}, std::size_t{1'068'304}}) {
    const Buffer buffer = collective_->allocate(n * sizeof(float));
    ASSERT_EQ(buffer.size(), n * sizeof(float));
    fill(buffer.span<float>(), 0);
    run(collective_->all_reduce("sum", buffer.span<float>(), 0));
    EXPECT_EQ(wrong_sums(buffer.span<float>(), 0), 0u) << "n = " << n;
  }
}

TEST_P(AllReduce, LeavesItsNeighboursInMemoryAlone) {
  const Buffer buffer = collective_->allocate(103 * sizeof(float));
  const std::span<float> all = buffer.span<float>();
  std::fill(all.begin(), all.end(), 5.0f);
  fill(all.subspan(1, 101), 0);
  run(collective_->all_reduce("sum", all.subspan(1, 101), 0));
  EXPECT_EQ(all.front(), 5.0f);
  EXPECT_EQ(all.back(), 5.0f);
  EXPECT_EQ(wrong_sums(all.subspan(1, 101), 0), 0u);
}

TEST_P(AllReduce, HandsOutZeroedMemoryOfWholeCacheLines) {
  const Buffer buffer = collective_->allocate(1000 * sizeof(float));
  const std::span<float> values = buffer.span<float>();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0u);
  EXPECT_EQ(std::count(values.begin(), values.end(), 0.0f), 1000);
}

TEST_P(AllReduce, DeclaresWhatItTouches) {
  const Buffer buffer = collective_->allocate(10 * sizeof(float));
  const Task task = collective_->all_reduce("sum of ten", buffer.span<float>(), 0);
  EXPECT_EQ(task.name, "sum of ten");
  for (const auto* ranges : {&task.reads, &task.writes}) {
    ASSERT_EQ(ranges->size(), 1u);
    EXPECT_EQ(ranges->front().begin, buffer.data());
    EXPECT_EQ(ranges->front().size, buffer.size());
  }
}

TEST_P(AllReduce, LeavesIdenticalBitsOnEveryRank) {
  for (const std::size_t n : {1u, 7u, 1001u, 300'007u}) {
    const Buffer buffer = collective_->allocate(n * sizeof(float));
    const Task task = collective_->all_reduce("sum", buffer.span<float>(), 0);
    fill_randomly(buffer.span<float>(), 0);
    run(task);
    std::vector<float> first(buffer.as<float>(), buffer.as<float>() + n);
    test_world().broadcast(std::as_writable_bytes(std::span(first)));
    EXPECT_EQ(std::memcmp(first.data(), buffer.data(), buffer.size()), 0) << "n = " << n;
  }
}

TEST_P(AllReduce, GivesTheSameBitsWhateverTheTiming) {
  const std::size_t n = 20'011;
  const Buffer buffer = collective_->allocate(n * sizeof(float));
  const Task task = collective_->all_reduce("sum", buffer.span<float>(), 0);
  std::vector<float> first;
  for (int round = 0; round < 20; ++round) {
    fill_randomly(buffer.span<float>(), 0);
    dawdle(round);
    run(task);
    if (round == 0) first.assign(buffer.as<float>(), buffer.as<float>() + n);
    EXPECT_EQ(std::memcmp(first.data(), buffer.data(), buffer.size()), 0) << "round " << round;
  }
}

TEST_P(AllReduce, KeepsBucketsApartWhenRanksDrift) {
  // Short arrays are sent at once, long ones only when the receiver is ready: both kinds in turn.
  const std::vector<std::size_t> sizes = {5, 100'003, 1, 1001};
  std::vector<Buffer> buffers;
  std::vector<Task> tasks;
  for (const std::size_t n : sizes) {
    buffers.push_back(collective_->allocate(n * sizeof(float)));
    tasks.push_back(collective_->all_reduce("sum", buffers.back().span<float>(), 0));
  }
  Lane lane;
  for (int round = 0; round < 15; ++round) {
    for (const Buffer& buffer : buffers) fill(buffer.span<float>(), round);
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      dawdle(4 * round + static_cast<int>(i));
      tasks[i].start(lane);
      if (round % 2 == 0) dawdle(100 + round);
      finish(tasks[i]);
    }
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      EXPECT_EQ(wrong_sums(buffers[i].span<float>(), round), 0u) << "round " << round << ", bucket " << i;
    }
  }
}

TEST_P(AllReduce, StartsAfreshInEveryRun) {
  const Buffer buffer = collective_->allocate(1003 * sizeof(float));
  const Task task = collective_->all_reduce("sum", buffer.span<float>(), 0);
  for (int round = 0; round < 200; ++round) {
    fill(buffer.span<float>(), round);
    run(task);
    ASSERT_EQ(wrong_sums(buffer.span<float>(), round), 0u) << "round " << round;
  }
}

TEST_P(AllReduce, StaysDoneWhenPolledAgain) {
  const Buffer buffer = collective_->allocate(10 * sizeof(float));
  const Task task = collective_->all_reduce("sum", buffer.span<float>(), 0);
  fill(buffer.span<float>(), 0);
  run(task);
  EXPECT_TRUE(task.poll());
  EXPECT_EQ(wrong_sums(buffer.span<float>(), 0), 0u);
}

TEST_P(AllReduce, WaitsNeitherInStartNorInPoll) {
  const Buffer buffer = collective_->allocate(1'000'003 * sizeof(float));
  const Task task = collective_->all_reduce("sum", buffer.span<float>(), 0);
  fill(buffer.span<float>(), 0);
  Lane lane;
  // The ranks start one after another, each after the one before: if `start` or `poll` waited for a peer, the peers
  // would never start.
  for (int turn = 0; turn < ranks(); ++turn) {
    if (turn == rank()) {
      task.start(lane);
      for (int i = 0; i < 10; ++i) task.poll();
    }
    test_world().barrier();
  }
  finish(task);
  EXPECT_EQ(wrong_sums(buffer.span<float>(), 0), 0u);
}

TEST_P(AllReduce, AllocatesNothingWhileItRuns) {
  const Buffer buffer = collective_->allocate(30'011 * sizeof(float));
  const Task task = collective_->all_reduce("sum", buffer.span<float>(), 0);
  const long before = test::allocations();
  for (int round = 0; round < 3; ++round) run(task);
  EXPECT_EQ(test::allocations() - before, 0);
}

TEST_P(AllReduce, KeepsItsMessagesFromOtherCollectives) {
  const std::unique_ptr<Collective> other = make(GetParam());
  const Buffer first = collective_->allocate(50'021 * sizeof(float));
  const Buffer second = other->allocate(50'021 * sizeof(float));
  const Task one = collective_->all_reduce("one", first.span<float>(), 0);
  const Task two = other->all_reduce("two", second.span<float>(), 0);
  fill(first.span<float>(), 1);
  fill(second.span<float>(), 2);
  Lane lane;
  const bool swapped = rank() % 2 == 1;
  (swapped ? two : one).start(lane);
  (swapped ? one : two).start(lane);
  for (bool done = false; !done; sched_yield()) {
    const bool first_done = one.poll();
    done = two.poll() && first_done;
  }
  EXPECT_EQ(wrong_sums(first.span<float>(), 1), 0u);
  EXPECT_EQ(wrong_sums(second.span<float>(), 2), 0u);
}

std::vector<Choice> choices() {
  std::vector<Choice> result;
  for (const CollectiveInfo& info : collectives()) result.push_back({std::string(info.name), "OneNode"});
  for (const char* layout : {"Halves", "LastAlone", "FirstAlone", "Alternating", "EachAlone"}) {
    result.push_back({"two-level", layout});
  }
  result.push_back({"auto", "Halves"});
  result.push_back({"auto", "EachAlone"});
  for (const char* name : {"ring", "doubling"}) result.push_back({name, "OneNode", Wire::bf16});
  for (const char* layout : {"Halves", "LastAlone", "Alternating", "EachAlone"}) {
    result.push_back({"two-level", layout, Wire::bf16});
  }
  result.push_back({"auto", "EachAlone", Wire::bf16});
  return result;
}

std::string camel_case(const Choice& choice) {
  std::string text = choice.name + choice.layout + (choice.wire == Wire::bf16 ? "Bf16" : "");
  std::erase(text, '-');
  return text;
}

INSTANTIATE_TEST_SUITE_P(Collective, AllReduce, testing::ValuesIn(choices()),
                         [](const auto& choice) { return camel_case(choice.param); });

TEST(RingAllReduce, NamesThePeerWhenAMessageIsTooLong) {
  if (ranks() != 2) GTEST_SKIP() << "needs exactly 2 ranks";
  // The ranks disagree on the length, which no program should: rank 0 is sent more than it can hold.
  const std::unique_ptr<Collective> ring = make_collective("ring", test_world());
  const Buffer buffer = ring->allocate(20 * sizeof(float));
  const Task task = ring->all_reduce("sum", buffer.span<float>().first(rank() == 0 ? 2 : 20), 0);
  Lane lane;
  task.start(lane);
  test_world().barrier();
  if (rank() != 0) return;
  expect_error(ErrorKind::comm, {"rank 1"}, [&] { finish(task); });
}

TEST(Collectives, HaveAPurposeEach) {
  ASSERT_FALSE(collectives().empty());
  for (const CollectiveInfo& info : collectives()) EXPECT_FALSE(info.purpose.empty()) << info.name;
}

TEST(Collectives, NameTheChoicesWhenAskedForAnother) {
  std::vector<std::string> names;
  for (const CollectiveInfo& info : collectives()) names.emplace_back(info.name);
  expect_error(ErrorKind::usage, names, [] { make_collective("star", test_world()); });
}

}  // namespace
}  // namespace cifar_mpi::comm
