#include "cifar_mpi/engine/pulse.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "cifar_mpi/engine/runner.hpp"
#include "fake_tasks.hpp"

namespace cifar_mpi::engine {
namespace {

std::unique_ptr<Runner> make(StepProgram program, RunnerKind kind, Pulse& pulse) {
  program.seal();
  auto runner = make_host_runner(std::move(program), kind, WhileWaiting::yield, {});
  runner->show_in(pulse);
  return runner;
}

TEST(Pulse, KeepsBothPartsOfAWord) {
  Pulse pulse;
  EXPECT_EQ(pulse.look(), (Pulse::Look{0, Pulse::kNobody}));
  pulse.show(0x1234'5678'9abc, 65534);
  EXPECT_EQ(pulse.look(), (Pulse::Look{0x1234'5678'9abc, 65534}));
  pulse.show(7, Pulse::kNobody);
  EXPECT_EQ(pulse.look(), (Pulse::Look{7, Pulse::kNobody}));
}

TEST(Pulse, ShowsEachTaskWhileItRuns) {
  for (const RunnerKind kind : {RunnerKind::serial, RunnerKind::lanes, RunnerKind::audit}) {
    Pulse pulse;
    std::vector<TaskId> seen;
    StepProgram program("p");
    for (int i = 0; i < 3; ++i) {
      program.run(kCompute, inline_task("t", {}, {}, [&] { seen.push_back(pulse.look().task); }));
    }
    const auto runner = make(std::move(program), kind, pulse);
    runner->replay();
    EXPECT_EQ(seen, (std::vector<TaskId>{0, 1, 2}));
    EXPECT_EQ(pulse.look().task, Pulse::kNobody);
  }
}

TEST(Pulse, CountsInEveryReplayAndEveryTask) {
  for (const RunnerKind kind : {RunnerKind::serial, RunnerKind::lanes}) {
    Pulse pulse;
    StepProgram program("p");
    std::uint64_t inside = 0;
    for (int i = 0; i < 2; ++i) {
      program.run(kCompute, inline_task("t", {}, {}, [&] {
                    EXPECT_GT(pulse.look().count, inside);
                    inside = pulse.look().count;
                  }));
    }
    const auto runner = make(std::move(program), kind, pulse);
    for (int replay = 0; replay < 3; ++replay) runner->replay();
  }
}

TEST(Pulse, StandsOnTheCollectiveThatIsWaitedForAndDoesNotCountPolls) {
  for (const RunnerKind kind : {RunnerKind::serial, RunnerKind::lanes}) {
    Pulse pulse;
    StepProgram program("p");
    program.run(kCompute, inline_task("compute", {}, {}));
    const MarkId ready = program.set(kCompute);
    program.wait(kComm, ready);
    Task collective = late_task(
        "all-reduce 0", {}, {}, [] {}, [] { return 50; });
    std::vector<Pulse::Look> polls;
    collective.poll = [&, poll = collective.poll] {
      polls.push_back(pulse.look());
      return poll();
    };
    const TaskId id = program.run(kComm, std::move(collective));
    program.wait(kCompute, program.set(kComm));
    const auto runner = make(std::move(program), kind, pulse);
    runner->replay();
    ASSERT_EQ(polls.size(), 50u);
    for (const Pulse::Look& look : polls) EXPECT_EQ(look, (Pulse::Look{polls.front().count, id}));
    const std::uint64_t first = polls.front().count;
    runner->replay();
    EXPECT_GT(polls.back().count, first);
  }
}

TEST(Pulse, StandsStillWhileTwoCollectivesArePolledInTurn) {
  Pulse pulse;
  StepProgram program("p");
  std::vector<std::uint64_t> counts;
  std::vector<MarkId> ends;
  for (const LaneId lane : {kComm, kFirstSide}) {
    Task task = late_task(
        "late", {}, {}, [] {}, [] { return 30; });
    task.poll = [&, poll = task.poll] {
      counts.push_back(pulse.look().count);
      return poll();
    };
    program.run(lane, std::move(task));
    ends.push_back(program.set(lane));
  }
  for (const MarkId end : ends) program.wait(kCompute, end);
  make(std::move(program), RunnerKind::lanes, pulse)->replay();
  ASSERT_GT(counts.size(), 50u);
  // Both are out from the second poll of the first on; until one of them ends nothing has got on.
  for (std::size_t i = 4; i < 50; ++i) EXPECT_EQ(counts[i], counts[4]) << i;
}

TEST(Pulse, IsSharedByTheRunnersOfOneThread) {
  Pulse pulse;
  std::vector<std::unique_ptr<Runner>> runners;
  for (int i = 0; i < 2; ++i) {
    StepProgram program("p");
    program.run(kCompute, inline_task("t", {}, {}));
    runners.push_back(make(std::move(program), RunnerKind::lanes, pulse));
  }
  for (int replay = 0; replay < 3; ++replay) runners[0]->replay();
  const std::uint64_t after_first = pulse.look().count;
  runners[1]->replay();
  const std::uint64_t after_second = pulse.look().count;
  EXPECT_GT(after_second, after_first);
  runners[0]->replay();
  EXPECT_GT(pulse.look().count, after_second);
}

}  // namespace
}  // namespace cifar_mpi::engine
