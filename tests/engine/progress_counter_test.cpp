#include "cifar_mpi/engine/progress_counter.hpp"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "cifar_mpi/engine/runner.hpp"
#include "fake_tasks.hpp"

namespace cifar_mpi::engine {
namespace {

std::unique_ptr<Runner> make(StepProgram program, RunnerKind kind, ProgressCounter& counter) {
  program.finalize();
  auto runner = make_host_runner(std::move(program), kind, WhileWaiting::yield, {});
  runner->show_in(counter);
  return runner;
}

TEST(ProgressCounter, KeepsBothPartsOfAWord) {
  ProgressCounter counter;
  EXPECT_EQ(counter.snapshot(), (ProgressCounter::Snapshot{0, ProgressCounter::kNobody}));
  counter.show(0x1234'5678'9abc, 65534);
  EXPECT_EQ(counter.snapshot(), (ProgressCounter::Snapshot{0x1234'5678'9abc, 65534}));
  counter.show(7, ProgressCounter::kNobody);
  EXPECT_EQ(counter.snapshot(), (ProgressCounter::Snapshot{7, ProgressCounter::kNobody}));
}

TEST(ProgressCounter, ShowsEachTaskWhileItRuns) {
  for (const RunnerKind kind : {RunnerKind::serial, RunnerKind::lanes, RunnerKind::audit}) {
    ProgressCounter counter;
    std::vector<TaskId> seen;
    StepProgram program("p");
    for (int i = 0; i < 3; ++i) {
      program.run(kCompute, inline_task("t", {}, {}, [&] { seen.push_back(counter.snapshot().task); }));
    }
    const auto runner = make(std::move(program), kind, counter);
    runner->replay();
    EXPECT_EQ(seen, (std::vector<TaskId>{0, 1, 2}));
    EXPECT_EQ(counter.snapshot().task, ProgressCounter::kNobody);
  }
}

TEST(ProgressCounter, CountsInEveryReplayAndEveryTask) {
  for (const RunnerKind kind : {RunnerKind::serial, RunnerKind::lanes}) {
    ProgressCounter counter;
    StepProgram program("p");
    std::uint64_t inside = 0;
    for (int i = 0; i < 2; ++i) {
      program.run(kCompute, inline_task("t", {}, {}, [&] {
                    EXPECT_GT(counter.snapshot().count, inside);
                    inside = counter.snapshot().count;
                  }));
    }
    const auto runner = make(std::move(program), kind, counter);
    for (int replay = 0; replay < 3; ++replay) runner->replay();
  }
}

TEST(ProgressCounter, StandsOnTheCollectiveThatIsWaitedForAndDoesNotCountPolls) {
  for (const RunnerKind kind : {RunnerKind::serial, RunnerKind::lanes}) {
    ProgressCounter counter;
    StepProgram program("p");
    program.run(kCompute, inline_task("compute", {}, {}));
    const MarkId ready = program.set(kCompute);
    program.wait(kComm, ready);
    Task collective = late_task(
        "all-reduce 0", {}, {}, [] {}, [] { return 50; });
    std::vector<ProgressCounter::Snapshot> polls;
    collective.poll = [&, poll = collective.poll] {
      polls.push_back(counter.snapshot());
      return poll();
    };
    const TaskId id = program.run(kComm, std::move(collective));
    program.wait(kCompute, program.set(kComm));
    const auto runner = make(std::move(program), kind, counter);
    runner->replay();
    ASSERT_EQ(polls.size(), 50u);
    for (const ProgressCounter::Snapshot& look : polls)
      EXPECT_EQ(look, (ProgressCounter::Snapshot{polls.front().count, id}));
    const std::uint64_t first = polls.front().count;
    runner->replay();
    EXPECT_GT(polls.back().count, first);
  }
}

TEST(ProgressCounter, StandsStillWhileTwoCollectivesArePolledInTurn) {
  ProgressCounter counter;
  StepProgram program("p");
  std::vector<std::uint64_t> counts;
  std::vector<MarkId> ends;
  for (const LaneId lane : {kComm, kFirstSide}) {
    Task task = late_task(
        "late", {}, {}, [] {}, [] { return 30; });
    task.poll = [&, poll = task.poll] {
      counts.push_back(counter.snapshot().count);
      return poll();
    };
    program.run(lane, std::move(task));
    ends.push_back(program.set(lane));
  }
  for (const MarkId end : ends) program.wait(kCompute, end);
  make(std::move(program), RunnerKind::lanes, counter)->replay();
  ASSERT_GT(counts.size(), 50u);
  // Both are outstanding from the second poll of the first on; until one of them ends, nothing makes
  // progress.
  for (std::size_t i = 4; i < 50; ++i) EXPECT_EQ(counts[i], counts[4]) << i;
}

/// A rank in a long task must not look like one that hangs.
TEST(ProgressCounter, CountsThePiecesOfATask) {
  ProgressCounter counter;
  StepProgram program("p");
  program.run(kComm, late_task(
                         "all-reduce 0", {}, {}, [] {}, [] { return 50; }));
  std::vector<ProgressCounter::Snapshot> seen;
  Task task = inline_task("convolution", {}, {});
  task.start = [&](Lane& lane) {
    for (int piece = 0; piece < 3; ++piece) {
      lane.make_progress();
      seen.push_back(counter.snapshot());
    }
  };
  const TaskId id = program.run(kCompute, std::move(task));
  program.wait(kCompute, program.set(kComm));
  make(std::move(program), RunnerKind::lanes, counter)->replay();
  const std::uint64_t first = seen.at(0).count;
  EXPECT_EQ(seen, (std::vector<ProgressCounter::Snapshot>{{first, id}, {first + 1, id}, {first + 2, id}}));
}

TEST(ProgressCounter, IsSharedByTheRunnersOfOneThread) {
  ProgressCounter counter;
  std::vector<std::unique_ptr<Runner>> runners;
  for (int i = 0; i < 2; ++i) {
    StepProgram program("p");
    program.run(kCompute, inline_task("t", {}, {}));
    runners.push_back(make(std::move(program), RunnerKind::lanes, counter));
  }
  for (int replay = 0; replay < 3; ++replay) runners[0]->replay();
  const std::uint64_t after_first = counter.snapshot().count;
  runners[1]->replay();
  const std::uint64_t after_second = counter.snapshot().count;
  EXPECT_GT(after_second, after_first);
  runners[0]->replay();
  EXPECT_GT(counter.snapshot().count, after_second);
}

}  // namespace
}  // namespace cifar_mpi::engine
