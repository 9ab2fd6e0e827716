#include "cifar_mpi/engine/recorder.hpp"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <thread>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/engine/runner.hpp"
#include "fake_tasks.hpp"
#include "support/allocation_count.hpp"

/// The records of a host runner.
namespace cifar_mpi::engine {
namespace {

constexpr RunnerKind kHostKinds[] = {RunnerKind::serial, RunnerKind::lanes, RunnerKind::audit};

/// Two tasks, a collective that is polled many times during the second, and a task that waits for it. The
/// second lets it progress between its pieces.
std::unique_ptr<Runner> make(RunnerKind kind) {
  StepProgram program("p");
  program.run(kCompute, inline_task("first", {}, {}));
  program.wait(kComm, program.set(kCompute));
  program.run(kComm, late_task(
                         "sum", {}, {}, [] {}, [] { return 20; }));
  const MarkId summed = program.set(kComm);
  Task pieces = inline_task("pieces", {}, {});
  pieces.start = [](Lane& lane) {
    for (int piece = 0; piece < 5; ++piece) lane.make_progress();
  };
  program.run(kCompute, std::move(pieces));
  program.wait(kCompute, summed);
  program.run(kCompute, inline_task("update", {}, {}));
  program.finalize();
  return make_host_runner(std::move(program), kind, WhileWaiting::spin, {});
}

TEST(Recorder, HasEveryTaskInOrderWithoutOverlapInsideItsReplay) {
  for (const RunnerKind kind : kHostKinds) {
    const auto runner = make(kind);
    runner->replay();
    Recorder recorder(3, 1000);
    runner->observe({&recorder});
    const std::int64_t before = steady_nanoseconds();
    runner->replay(3);
    runner->observe({});
    ASSERT_EQ(recorder.replays(), 3u);
    std::int64_t last = before;
    for (std::size_t i = 0; i < 3; ++i) {
      const Recorder::Replay replay = recorder[i];
      if (i > 0) {
        EXPECT_EQ(replay.begin_ns, last) << "a replay ends where the next one begins";
      }
      EXPECT_GE(replay.begin_ns, last);
      last = replay.begin_ns;
      std::set<TaskId> seen;
      for (const Recorder::Slice& slice : replay.slices) {
        EXPECT_GE(slice.begin_ns, last);
        EXPECT_GE(slice.end_ns, slice.begin_ns);
        last = slice.end_ns;
        seen.insert(slice.task);
      }
      EXPECT_EQ(seen, (std::set<TaskId>{0, 1, 2, 3}));
      EXPECT_GE(replay.end_ns, last);
      EXPECT_EQ(replay.dropped, 0u);
      last = replay.end_ns;
    }
    EXPECT_LE(last, steady_nanoseconds());
    EXPECT_FALSE(recorder.open());
  }
}

TEST(Recorder, SumsUpToTheSecondsThatTheRunnerTells) {
  for (const RunnerKind kind : kHostKinds) {
    const auto runner = make(kind);
    Recorder recorder(4, 1000);
    runner->observe({&recorder});
    runner->replay(4);
    runner->observe({});
    std::array<double, 4> seconds{};
    for (std::size_t i = 0; i < 4; ++i) {
      for (const Recorder::Slice& slice : recorder[i].slices)
        seconds[static_cast<std::size_t>(slice.task)] +=
            1e-9 * static_cast<double>(slice.end_ns - slice.begin_ns);
    }
    for (std::size_t task = 0; task < 4; ++task)
      EXPECT_NEAR(seconds[task], runner->task_seconds()[task], 1e-12) << task;
  }
}

TEST(Recorder, TellsHowLongTheThreadWasOnACoreInATask) {
  const auto compute = [] {  // for 20 ms on a core, however long that takes beside other work
    const auto on_a_core = [] {
      timespec time{};
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
      return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
    };
    for (const double end = on_a_core() + 0.02; on_a_core() < end;) {
    }
  };
  for (const RunnerKind kind : kHostKinds) {
    StepProgram program("p");
    program.run(kCompute, inline_task("computes", {}, {}, compute));
    program.run(kCompute, inline_task("sleeps", {}, {},
                                      [] { std::this_thread::sleep_for(std::chrono::milliseconds(30)); }));
    program.finalize();
    const auto runner = make_host_runner(std::move(program), kind, WhileWaiting::spin, {});
    Recorder recorder(1, 10);
    runner->observe({&recorder});
    runner->replay();
    runner->observe({});
    ASSERT_EQ(recorder[0].slices.size(), 2u);
    const auto of_a_core = [&](std::size_t i) {
      const Recorder::Slice& slice = recorder[0].slices[i];
      return static_cast<double>(slice.cpu_ns) / static_cast<double>(slice.end_ns - slice.begin_ns);
    };
    EXPECT_GE(recorder[0].slices[0].cpu_ns, 20'000'000);
    EXPECT_LT(of_a_core(0), 1.1);
    EXPECT_GE(of_a_core(1), 0.0);
    EXPECT_LT(of_a_core(1), 0.5);
  }
}

TEST(Recorder, HasAStretchForEachTimeThatACollectiveMoves) {
  const auto runner = make(RunnerKind::lanes);
  Recorder recorder(1, 1000);
  runner->observe({&recorder});
  runner->replay();
  std::vector<TaskId> order;
  for (const Recorder::Slice& slice : recorder[0].slices) order.push_back(slice.task);
  const std::vector<TaskId> pieces{2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2};
  EXPECT_NE(std::search(order.begin(), order.end(), pieces.begin(), pieces.end()), order.end());
}

TEST(Recorder, CountsWhatFindsNoRoom) {
  const auto runner = make(RunnerKind::serial);
  Recorder recorder(2, 3);
  runner->observe({&recorder});
  runner->replay(3);
  runner->observe({});
  ASSERT_EQ(recorder.replays(), 2u) << "the third replay did not fit";
  EXPECT_TRUE(recorder.full());
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(recorder[i].slices.size(), 3u);
    EXPECT_EQ(recorder[i].slices[2].task, 2) << "the first ones are kept";
    EXPECT_EQ(recorder[i].dropped, 1u);
  }
  EXPECT_EQ(recorder[0].end_ns, recorder[1].begin_ns);
  EXPECT_GT(recorder[1].end_ns, recorder[1].slices[2].end_ns);
  recorder.clear();
  EXPECT_EQ(recorder.replays(), 0u);
}

TEST(Recorder, IsAskedForAndGivenBackBetweenReplays) {
  const auto runner = make(RunnerKind::lanes);
  Recorder recorder(5, 1000), other(5, 1000);
  runner->replay();
  runner->observe({&recorder});
  runner->replay();
  EXPECT_TRUE(recorder.open()) << "work of the host after a step belongs to it";
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  runner->observe({&other});
  EXPECT_GT(recorder[0].end_ns - recorder[0].slices.back().end_ns, 2'000'000);
  runner->replay();
  runner->observe({});
  runner->replay();
  EXPECT_EQ(recorder.replays(), 1u);
  EXPECT_EQ(other.replays(), 1u);
}

TEST(Recorder, AllocatesNothingInAReplay) {
  for (const RunnerKind kind : kHostKinds) {
    const auto runner = make(kind);
    Recorder recorder(20, 50);
    runner->observe({&recorder});
    const long before = test::allocations();
    runner->replay(30);
    runner->observe({});
    EXPECT_EQ(test::allocations() - before, 0);
    EXPECT_EQ(recorder.replays(), 20u);
  }
}

}  // namespace
}  // namespace cifar_mpi::engine
