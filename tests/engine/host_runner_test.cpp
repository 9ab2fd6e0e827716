#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <thread>
#include <utility>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/engine/runner.hpp"
#include "fake_tasks.hpp"
#include "support/errors.hpp"

namespace cifar_mpi::engine {
namespace {

constexpr RunnerKind kKinds[] = {RunnerKind::automatic, RunnerKind::serial, RunnerKind::lanes,
                                 RunnerKind::audit};

std::unique_ptr<Runner> finalize_and_make(StepProgram program, RunnerKind kind,
                                          WhileWaiting waiting = WhileWaiting::yield) {
  program.finalize();
  return make_host_runner(std::move(program), kind, waiting, {});
}

/// Records events in order.
struct Diary {
  std::vector<std::string> lines;
  Task inline_entry(const std::string& name) {
    return inline_task(name, {}, {}, [this, name] { lines.push_back(name); });
  }
  /// "name" when it starts, "name done" in the `polls`-th poll.
  Task late_entry(const std::string& name, int polls) {
    Task task = late_task(
        name, {}, {}, [this, name] { lines.push_back(name + " done"); }, [polls] { return polls; });
    task.start = [this, name, start = task.start](Lane& lane) {
      lines.push_back(name);
      start(lane);
    };
    return task;
  }
};

using Lines = std::vector<std::string>;

TEST(HostRunner, RefusesAProgramThatIsNotFinalizedOrHasNothingToStart) {
  StepProgram open("open");
  EXPECT_THROW(make_host_runner(open, RunnerKind::serial, WhileWaiting::spin, {}), std::logic_error);
  StepProgram hollow("hollow");
  hollow.run(kCompute, {"hollow", {}, {}, nullptr, nullptr});
  hollow.finalize();
  EXPECT_THROW(make_host_runner(hollow, RunnerKind::serial, WhileWaiting::spin, {}), std::logic_error);
}

TEST(HostRunner, RefusesGraphNamingTheOption) {
  StepProgram program("p");
  program.finalize();
  expect_error(ErrorKind::usage, {"--runner"},
               [&] { make_host_runner(program, RunnerKind::graph, WhileWaiting::spin, {}); });
}

TEST(SerialRunner, FinishesEveryTaskBeforeTheNext) {
  Diary diary;
  StepProgram program("p");
  program.run(kComm, diary.late_entry("sum", 4));
  const MarkId summed = program.set(kComm);
  program.run(kCompute, diary.inline_entry("work"));
  program.wait(kCompute, summed);
  finalize_and_make(program, RunnerKind::serial)->replay();
  EXPECT_EQ(diary.lines, (Lines{"sum", "sum done", "work"}));
}

/// Also on a separate lane, whose marks are still set.
TEST(HostRunner, RunsObserversOnlyInReplaysThatAreObserved) {
  for (const RunnerKind kind : kKinds) {
    Diary diary;
    StepProgram program("observed");
    Task observer = diary.inline_entry("look"), beside = diary.inline_entry("look beside");
    observer.observer = beside.observer = true;
    program.run(kCompute, diary.inline_entry("work"));
    program.run(kCompute, std::move(observer));
    program.run(kFirstSide, std::move(beside));
    program.wait(kCompute, program.set(kFirstSide));
    program.run(kCompute, diary.inline_entry("more"));
    const auto runner = finalize_and_make(std::move(program), kind);
    runner->replay();
    EXPECT_EQ(std::exchange(diary.lines, {}), (Lines{"work", "more"})) << to_string(kind);
    runner->observe({.look = true});
    runner->replay(2);
    EXPECT_EQ(std::exchange(diary.lines, {}),
              (Lines{"work", "look", "look beside", "more", "work", "look", "look beside", "more"}));
    runner->observe({});
    runner->replay();
    EXPECT_EQ(diary.lines, (Lines{"work", "more"}));
    EXPECT_EQ(runner->finished(), 4u);
  }
}

TEST(LanesRunner, WorksOnWhileACollectiveIsOut) {
  Diary diary;
  StepProgram program("p");
  program.run(kCompute, diary.inline_entry("backward 1"));
  program.wait(kComm, program.set(kCompute));
  program.run(kComm, diary.late_entry("sum", 4));
  const MarkId summed = program.set(kComm);
  for (const char* name : {"backward 2", "backward 3", "backward 4"})
    program.run(kCompute, diary.inline_entry(name));
  program.wait(kCompute, summed);
  program.run(kCompute, diary.inline_entry("update"));
  const auto runner = finalize_and_make(program, RunnerKind::lanes);
  for (int replay = 0; replay < 2; ++replay) {
    diary.lines.clear();
    runner->replay();
    // Two polls while its own lines are walked, then one after each task.
    EXPECT_EQ(diary.lines,
              (Lines{"backward 1", "sum", "backward 2", "backward 3", "sum done", "backward 4", "update"}));
  }
}

TEST(LanesRunner, MovesCollectivesWhileATaskBreathes) {
  Diary diary;
  StepProgram program("p");
  Task pieces = diary.inline_entry("pieces");
  pieces.start = [&diary](Lane& lane) {
    for (int piece = 0; piece < 6; ++piece) {
      diary.lines.push_back("piece");
      lane.make_progress();
    }
  };
  program.run(kComm, diary.late_entry("sum", 6));  // polled twice before the pieces begin
  program.run(kComm, diary.late_entry("next sum", 1));
  program.run(kComm, diary.inline_entry("scale"));
  const MarkId summed = program.set(kComm);
  program.run(kCompute, std::move(pieces));
  program.wait(kCompute, summed);
  program.run(kCompute, diary.inline_entry("update"));
  const auto runner = finalize_and_make(program, RunnerKind::lanes);
  for (int replay = 0; replay < 2; ++replay) {
    diary.lines.clear();
    runner->replay();
    // Tasks other than collectives wait until the thread is free.
    EXPECT_EQ(diary.lines, (Lines{"sum", "piece", "piece", "sum done", "next sum", "next sum done", "piece",
                                  "piece", "piece", "piece", "scale", "update"}));
  }
}

TEST(LanesRunner, HoldsComputeUntilTheMarkItWaitsFor) {
  for (const WhileWaiting waiting : {WhileWaiting::spin, WhileWaiting::yield}) {
    Diary diary;
    StepProgram program("p");
    program.run(kComm, diary.late_entry("sum", 100));
    const MarkId summed = program.set(kComm);
    program.run(kComm, diary.late_entry("not waited for", 100));
    program.run(kCompute, diary.inline_entry("work"));
    program.wait(kCompute, summed);
    program.run(kCompute, diary.inline_entry("update"));
    program.wait(kCompute, program.set(kComm));
    const auto runner = finalize_and_make(program, RunnerKind::lanes, waiting);
    for (int replay = 0; replay < 2; ++replay) {
      diary.lines.clear();
      runner->replay();
      EXPECT_EQ(diary.lines,
                (Lines{"sum", "work", "sum done", "not waited for", "update", "not waited for done"}));
    }
  }
}

TEST(LanesRunner, QueuesALaneAfterItsTaskInFlight) {
  Diary diary;
  StepProgram program("p");
  program.run(kComm, diary.late_entry("sum 1", 5));  // polled four times before "work" runs
  program.run(kComm, diary.inline_entry("scale"));
  program.run(kComm, diary.late_entry("sum 2", 1));
  const MarkId summed = program.set(kComm);
  program.run(kCompute, diary.inline_entry("work"));
  program.wait(kCompute, summed);
  program.run(kCompute, diary.inline_entry("update"));
  finalize_and_make(program, RunnerKind::lanes)->replay();
  EXPECT_EQ(diary.lines, (Lines{"sum 1", "work", "sum 1 done", "scale", "sum 2", "sum 2 done", "update"}));
}

TEST(LanesRunner, RunsSideLanesInListOrder) {
  Diary diary;
  StepProgram program("p");
  program.run(kCompute, diary.inline_entry("a"));
  program.run(kFirstSide, diary.inline_entry("b"));
  program.run(kCompute, diary.inline_entry("c"));
  program.wait(kCompute, program.set(kFirstSide));
  finalize_and_make(program, RunnerKind::lanes)->replay();
  EXPECT_EQ(diary.lines, (Lines{"a", "b", "c"}));
}

TEST(LanesRunner, KeepsListOrderWhileComputeWaits) {
  Diary diary;
  StepProgram program("p");
  program.run(kComm, diary.late_entry("sum", 50));
  program.wait(kCompute, program.set(kComm));
  program.run(kCompute, diary.inline_entry("update"));
  program.run(kFirstSide, diary.inline_entry("beside"));
  program.wait(kCompute, program.set(kFirstSide));
  finalize_and_make(program, RunnerKind::lanes)->replay();
  EXPECT_EQ(diary.lines, (Lines{"sum", "sum done", "update", "beside"}));
}

TEST(LanesRunner, HoldsComputeAfterItsOwnLateTask) {
  Diary diary;
  StepProgram program("p");
  program.run(kCompute, diary.late_entry("sum", 7));
  program.run(kCompute, diary.inline_entry("update"));
  program.run(kCompute, diary.late_entry("last", 7));
  finalize_and_make(program, RunnerKind::lanes, WhileWaiting::spin)->replay();
  EXPECT_EQ(diary.lines, (Lines{"sum", "sum done", "update", "last", "last done"}));
}

TEST(HostRunner, PassesOnWhatATaskThrowsAndCanReplayAgain) {
  for (const RunnerKind kind : kKinds) {
    for (const bool in_poll : {false, true}) {
      bool fail = true;
      bool updated = false;
      int starts = 0;
      int ends = 0;
      const auto lose_peer = [&fail, &ends] {
        if (fail) throw Error(ErrorKind::comm, "rank 3 was lost");
        ++ends;
      };
      StepProgram program("p");
      Task sum = in_poll ? late_task("sum", {}, {}, lose_peer, [] { return 2; })
                         : inline_task("sum", {}, {}, lose_peer);
      sum.start = [&starts, start = sum.start](Lane& lane) { ++starts, start(lane); };
      program.run(kComm, std::move(sum));
      program.wait(kCompute, program.set(kComm));
      program.run(kCompute, inline_task("update", {}, {}, [&updated] { updated = true; }));
      const auto runner = finalize_and_make(program, kind);
      EXPECT_EQ(thrown_text<Error>([&] { runner->replay(); }), "rank 3 was lost");
      EXPECT_FALSE(updated);
      fail = false;
      EXPECT_NO_THROW(runner->replay());
      EXPECT_TRUE(updated);
      EXPECT_EQ(starts, 2);
      EXPECT_EQ(ends, 1) << "what was in flight when the error came is forgotten";
    }
  }
}

TEST(HostRunner, ChargesWorkAndWaitingToTheirTasks) {
  using std::chrono::milliseconds;
  for (const RunnerKind kind : kKinds) {
    std::chrono::steady_clock::time_point due;
    StepProgram program("p");
    const TaskId work = program.run(
        kCompute, inline_task("work", {}, {}, [] { std::this_thread::sleep_for(milliseconds(5)); }));
    program.wait(kComm, program.set(kCompute));
    Task sum{"sum", {}, {}, nullptr, nullptr};
    sum.start = [&due](Lane&) { due = std::chrono::steady_clock::now() + milliseconds(20); };
    sum.poll = [&due] { return std::chrono::steady_clock::now() >= due; };
    const TaskId summed = program.run(kComm, sum);
    program.wait(kCompute, program.set(kComm));
    const TaskId update = program.run(kCompute, inline_task("update", {}, {}));
    const auto runner = finalize_and_make(program, kind);
    EXPECT_EQ(runner->task_seconds(), std::vector<double>(3, 0.0));
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 2; ++i) runner->replay();
    const double all = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const std::vector<double> seconds = runner->task_seconds();
    constexpr double kRounding = 1e-6;  // of seconds since boot in double: 1e7 · 2^-53 per reading
    EXPECT_GE(seconds[static_cast<std::size_t>(work)], 0.010 - kRounding);
    EXPECT_GE(seconds[static_cast<std::size_t>(summed)], 0.040 - kRounding);
    EXPECT_LE(seconds[0] + seconds[1] + seconds[2], all);
    EXPECT_GE(seconds[static_cast<std::size_t>(update)], 0.0);
  }
}

}  // namespace
}  // namespace cifar_mpi::engine
