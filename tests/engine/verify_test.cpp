#include "cifar_mpi/engine/verify.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "fake_tasks.hpp"

namespace cifar_mpi::engine {
namespace {

/// A step in miniature: two buckets summed after their writers, two updates after the sums. Waits can be left
/// out by number.
struct SmallStep {
  std::array<float, 8> grads{};
  std::array<float, 8> params{};
  int waits = 0;

  StepProgram build(int left_out = -1) {
    StepProgram program("step");
    waits = 0;
    const auto wait = [&](LaneId lane, MarkId mark) {
      if (waits++ != left_out) program.wait(lane, mark);
    };
    const Bytes low = bytes_of(grads.data(), 4);
    const Bytes high = bytes_of(grads.data() + 4, 4);
    const Bytes weights = bytes_of(params.data(), 8);
    program.run(kCompute, inline_task("backward high", {weights}, {high}));
    const MarkId high_ready = program.set(kCompute);
    wait(kComm, high_ready);
    program.run(kComm, inline_task("sum high", {high}, {high}));
    const MarkId high_summed = program.set(kComm);
    program.run(kCompute, inline_task("backward low", {weights}, {low}));
    const MarkId low_ready = program.set(kCompute);
    wait(kComm, low_ready);
    program.run(kComm, inline_task("sum low", {low}, {low}));
    const MarkId low_summed = program.set(kComm);
    wait(kCompute, high_summed);
    program.run(kCompute, inline_task("update high", {high}, {bytes_of(params.data() + 4, 4)}));
    wait(kCompute, low_summed);
    program.run(kCompute, inline_task("update low", {low}, {bytes_of(params.data(), 4)}));
    return program;
  }
};

std::vector<Race> races_of(const std::vector<std::pair<LaneId, Task>>& tasks) {
  StepProgram program("bare");
  for (const auto& [lane, task] : tasks) program.run(lane, task);
  return find_races(program);
}

TEST(FindRaces, AcceptsAStepWithAllItsWaits) {
  SmallStep step;
  EXPECT_TRUE(find_races(step.build()).empty());
  EXPECT_EQ(step.waits, 4);
}

TEST(FindRaces, NamesThePairWhenOneWaitIsLeftOut) {
  const struct {
    const char* earlier;
    const char* later;
    std::size_t bytes;
  } expected[] = {{"backward high", "sum high", 16},
                  {"backward low", "sum low", 16},
                  // The wait for the second sum comes too late for the first update.
                  {"sum high", "update high", 16},
                  {"sum low", "update low", 16}};
  for (int left_out = 0; left_out < 4; ++left_out) {
    SmallStep step;
    const StepProgram program = step.build(left_out);
    const auto named = [&](TaskId task, const char* name) {
      return program.tasks()[static_cast<std::size_t>(task)].name == name;
    };
    int found = 0;
    for (const Race& race : find_races(program)) {
      if (!named(race.earlier, expected[left_out].earlier) || !named(race.later, expected[left_out].later))
        continue;
      EXPECT_EQ(race.bytes.size, expected[left_out].bytes);
      EXPECT_FALSE(race.next_replay);
      ++found;
    }
    EXPECT_EQ(found, 1) << "without wait " << left_out;
  }
}

TEST(FindRaces, SeesTheNextReplayWriteWhatThisOneStillReads) {
  std::array<float, 4> grads{};
  std::array<float, 4> figures{};
  StepProgram program("train");
  const TaskId backward = program.run(kCompute, inline_task("backward", {}, {bytes_of(grads.data(), 4)}));
  const MarkId ready = program.set(kCompute);
  program.wait(kComm, ready);
  const TaskId norm =
      program.run(kComm, inline_task("norm", {bytes_of(grads.data(), 4)}, {bytes_of(figures.data(), 4)}));
  const std::vector<Race> races = find_races(program);
  ASSERT_EQ(races.size(), 1u);
  EXPECT_TRUE(races[0].next_replay);
  EXPECT_EQ(races[0].earlier, norm);
  EXPECT_EQ(races[0].later, backward);
  EXPECT_EQ(races[0].bytes.begin, bytes_of(grads.data(), 4).begin);
  EXPECT_EQ(races[0].bytes.size, 16u);

  program.wait(kCompute, program.set(kComm));
  EXPECT_TRUE(find_races(program).empty());
}

TEST(FindRaces, SeesALaneRunAheadIntoTheNextReplay) {
  // comm joins compute, but nothing holds comm's next replay until compute has read the copy.
  std::array<float, 4> copy{};
  StepProgram program("train");
  program.run(kComm, inline_task("fetch", {}, {bytes_of(copy.data(), 4)}));
  program.wait(kCompute, program.set(kComm));
  program.run(kCompute, inline_task("use", {bytes_of(copy.data(), 4)}, {}));
  const std::vector<Race> races = find_races(program);
  ASSERT_EQ(races.size(), 1u);
  EXPECT_TRUE(races[0].next_replay);
  EXPECT_EQ(program.tasks()[static_cast<std::size_t>(races[0].earlier)].name, "use");
  EXPECT_EQ(program.tasks()[static_cast<std::size_t>(races[0].later)].name, "fetch");
}

TEST(FindRaces, FollowsAnOrderOverAThirdLane) {
  std::array<float, 4> x{};
  for (const bool linked : {true, false}) {
    StepProgram program("chain");
    program.run(kCompute, inline_task("a", {}, {bytes_of(x.data(), 4)}));
    const MarkId first = program.set(kCompute);
    if (linked) program.wait(kFirstSide, first);
    program.wait(kComm, program.set(kFirstSide));
    program.run(kComm, inline_task("b", {bytes_of(x.data(), 4)}, {}));
    program.wait(kCompute, program.set(kComm));
    EXPECT_EQ(find_races(program).empty(), linked);
  }
}

TEST(FindRaces, AMarkCoversOnlyWhatStandsBeforeIt) {
  std::array<float, 4> x{};
  StepProgram program("early mark");
  const MarkId early = program.set(kCompute);
  program.run(kCompute, inline_task("write", {}, {bytes_of(x.data(), 4)}));
  program.wait(kComm, early);
  program.run(kComm, inline_task("read", {bytes_of(x.data(), 4)}, {}));
  program.wait(kCompute, program.set(kComm));
  ASSERT_EQ(find_races(program).size(), 1u);
}

TEST(FindRaces, LetsTwoLanesReadTheSameBytes) {
  std::array<float, 4> x{};
  const Bytes all = bytes_of(x.data(), 4);
  EXPECT_TRUE(
      races_of({{kCompute, inline_task("a", {all}, {})}, {kComm, inline_task("b", {all}, {})}}).empty());
}

TEST(FindRaces, SeesEveryWayToConflict) {
  std::array<float, 4> x{};
  const std::vector<Bytes> none;
  const std::vector<Bytes> all{bytes_of(x.data(), 4)};
  const struct { bool first_writes, second_writes; } ways[] = {{true, true}, {true, false}, {false, true}};
  for (const auto& way : ways) {
    const Task first = inline_task("a", way.first_writes ? none : all, way.first_writes ? all : none);
    const Task second = inline_task("b", way.second_writes ? none : all, way.second_writes ? all : none);
    EXPECT_EQ(races_of({{kCompute, first}, {kComm, second}}).size(), 1u)
        << way.first_writes << way.second_writes;
  }
}

TEST(FindRaces, LetsOneLaneDoAsItLikes) {
  std::array<float, 4> x{};
  const Bytes all = bytes_of(x.data(), 4);
  EXPECT_TRUE(
      races_of({{kComm, inline_task("a", {all}, {all})}, {kComm, inline_task("b", {all}, {all})}}).empty());
}

TEST(FindRaces, TellsNeighboursFromOverlaps) {
  std::array<float, 8> x{};
  const auto writes = [&](std::size_t begin, std::size_t end) {
    return inline_task("w", {}, {bytes_of(x.data() + begin, end - begin)});
  };
  EXPECT_TRUE(races_of({{kCompute, writes(0, 4)}, {kComm, writes(4, 8)}}).empty());
  EXPECT_TRUE(races_of({{kCompute, writes(0, 8)}, {kComm, writes(4, 4)}}).empty())
      << "an empty range touches nothing";
  const std::vector<Race> races = races_of({{kCompute, writes(0, 5)}, {kComm, writes(3, 8)}});
  ASSERT_EQ(races.size(), 1u);
  EXPECT_EQ(races[0].bytes.begin, bytes_of(x.data() + 3, 2).begin);
  EXPECT_EQ(races[0].bytes.size, 8u);
}

TEST(FindRaces, ReportsAPairOnceWithItsLargestOverlap) {
  std::array<float, 16> x{};
  const std::vector<Bytes> parts{bytes_of(x.data(), 2), bytes_of(x.data() + 4, 6),
                                 bytes_of(x.data() + 12, 1)};
  const std::vector<Race> races =
      races_of({{kCompute, inline_task("a", parts, parts)}, {kComm, inline_task("b", parts, parts)}});
  ASSERT_EQ(races.size(), 1u);
  EXPECT_EQ(races[0].bytes.begin, parts[1].begin);
  EXPECT_EQ(races[0].bytes.size, 24u);
}

TEST(DescribeRace, NamesProgramTasksLanesAndBytes) {
  std::array<float, 4> x{};
  StepProgram program("train");
  const TaskId a = program.run(kFirstSide + 1, inline_task("conv2 weights", {}, {bytes_of(x.data(), 4)}));
  const TaskId b = program.run(kComm, inline_task("all-reduce 0", {}, {bytes_of(x.data(), 4)}));
  const std::string text = describe(program, {a, b, true, bytes_of(x.data(), 4)});
  EXPECT_TRUE(
      contains(text,
               "race in train: 'conv2 weights' (side 1) and 'all-reduce 0' (comm, next replay) both touch "
               "16 bytes"))
      << text;
}

}  // namespace
}  // namespace cifar_mpi::engine
