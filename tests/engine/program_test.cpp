#include "cifar_mpi/engine/program.hpp"

#include <gtest/gtest.h>

#include <array>
#include <stdexcept>

#include "fake_tasks.hpp"

namespace cifar_mpi::engine {
namespace {

std::string finalize_text(StepProgram program) {
  return thrown_text<std::logic_error>([&] { program.finalize(); });
}

TEST(StepProgram, KeepsItsLinesInOrder) {
  StepProgram program("p");
  EXPECT_EQ(program.run(kCompute, inline_task("a", {}, {})), 0);
  const MarkId mark = program.set(kCompute);
  program.wait(kFirstSide, mark);
  EXPECT_EQ(program.run(kFirstSide, inline_task("b", {}, {})), 1);
  const std::vector<Instruction>& lines = program.instructions();
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_TRUE(lines[0].op == Op::run && lines[0].lane == kCompute && lines[0].target == 0);
  EXPECT_TRUE(lines[1].op == Op::set && lines[1].lane == kCompute && lines[1].target == mark);
  EXPECT_TRUE(lines[2].op == Op::wait && lines[2].lane == kFirstSide && lines[2].target == mark);
  EXPECT_TRUE(lines[3].op == Op::run && lines[3].lane == kFirstSide && lines[3].target == 1);
  EXPECT_EQ(program.lanes(), 3);
  EXPECT_EQ(program.marks(), 1);
}

TEST(StepProgram, RefusesAWaitForAMarkNotSetBefore) {
  StepProgram program("p");
  EXPECT_THROW(program.wait(kComm, 0), std::logic_error);
  const MarkId mark = program.set(kCompute);
  EXPECT_NO_THROW(program.wait(kComm, mark));
  EXPECT_THROW(program.wait(kComm, mark + 1), std::logic_error);
  EXPECT_THROW(program.wait(kComm, -1), std::logic_error);
}

TEST(StepProgram, TakesNothingMoreOnceFinalized) {
  StepProgram program("p");
  const MarkId mark = program.set(kCompute);
  program.finalize();
  EXPECT_TRUE(program.finalized());
  EXPECT_THROW(program.run(kCompute, inline_task("a", {}, {})), std::logic_error);
  EXPECT_THROW(program.set(kCompute), std::logic_error);
  EXPECT_THROW(program.wait(kCompute, mark), std::logic_error);
  EXPECT_THROW(program.finalize(), std::logic_error);
}

TEST(StepProgram, FinalizesOnlyWhenEveryLaneJoinsAfterItsLastTask) {
  StepProgram never("p");
  never.run(kComm, inline_task("sum", {}, {}));
  EXPECT_TRUE(contains(finalize_text(never), "lane 1 does not join back")) << finalize_text(never);

  StepProgram only_set = never;
  only_set.set(kComm);
  EXPECT_NE(finalize_text(only_set), "");

  StepProgram other_lane_waits = never;
  other_lane_waits.wait(kFirstSide, other_lane_waits.set(kComm));
  EXPECT_NE(finalize_text(other_lane_waits), "");

  StepProgram others_mark = never;
  others_mark.wait(kCompute, others_mark.set(kFirstSide));
  EXPECT_NE(finalize_text(others_mark), "");

  StepProgram joined = never;
  const MarkId mark = joined.set(kComm);
  joined.wait(kCompute, mark);
  EXPECT_EQ(finalize_text(joined), "");

  StepProgram joined_too_early = joined;
  joined_too_early.run(kComm, inline_task("sum 2", {}, {}));
  joined_too_early.wait(kCompute, mark);  // set before the last task
  EXPECT_NE(finalize_text(joined_too_early), "");
}

TEST(StepProgram, DoesNotFinalizeWithARaceAndNamesIt) {
  std::array<float, 4> x{};
  StepProgram program("train");
  program.run(kCompute, inline_task("backward", {}, {bytes_of(x.data(), 4)}));
  program.run(kComm, inline_task("sum", {}, {bytes_of(x.data(), 4)}));
  program.wait(kCompute, program.set(kComm));
  const std::string text = thrown_text<std::logic_error>([&] { program.finalize(); });
  EXPECT_TRUE(contains(text, "race in train: 'backward' (compute) and 'sum' (comm)")) << text;
  EXPECT_FALSE(program.finalized());
}

}  // namespace
}  // namespace cifar_mpi::engine
