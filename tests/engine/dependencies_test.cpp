#include "cifar_mpi/engine/dependencies.hpp"

#include <gtest/gtest.h>

#include "fake_tasks.hpp"

namespace cifar_mpi::engine {
namespace {

using Tasks = std::vector<TaskId>;

Task collective(const char* name) {
  Task task = inline_task(name, {}, {});
  task.kind = TaskKind::collective;
  return task;
}

TEST(Dependencies, AreTheLastWriterOfABucketAndTheSumThatAnUpdateWaitsFor) {
  StepProgram program("step");
  program.run(kCompute, inline_task("forward", {}, {}));
  const TaskId late = program.run(kCompute, inline_task("backward, late layers", {}, {}));
  program.wait(kComm, program.set(kCompute));
  const TaskId sum_0 = program.run(kComm, collective("sum 0"));
  const MarkId summed_0 = program.set(kComm);
  const TaskId early = program.run(kCompute, inline_task("backward, early layers", {}, {}));
  const TaskId side = program.run(kFirstSide, inline_task("weight gradient", {}, {}));
  program.wait(kComm, program.set(kCompute));
  program.wait(kComm, program.set(kFirstSide));
  const TaskId sum_1 = program.run(kComm, collective("sum 1"));
  const TaskId sum_2 = program.run(kComm, collective("sum 2, ready at the same time"));
  const MarkId summed_2 = program.set(kComm);
  program.wait(kCompute, summed_0);
  const TaskId update_0 = program.run(kCompute, inline_task("update 0", {}, {}));
  program.wait(kCompute, summed_2);
  const TaskId update_1 = program.run(kCompute, inline_task("update 1", {}, {}));
  const TaskId update_2 = program.run(kCompute, inline_task("update 2", {}, {}));
  program.wait(kCompute, program.set(kFirstSide));
  program.run(kCompute, inline_task("advance", {}, {}));
  program.finalize();

  const std::vector<Tasks> found = find_dependencies(program);
  EXPECT_EQ(found[static_cast<std::size_t>(sum_0)], Tasks{late});
  EXPECT_EQ(found[static_cast<std::size_t>(sum_1)], (Tasks{early, side}));
  EXPECT_EQ(found[static_cast<std::size_t>(sum_2)], (Tasks{early, side}));
  EXPECT_EQ(found[static_cast<std::size_t>(update_0)], Tasks{sum_0});
  EXPECT_EQ(found[static_cast<std::size_t>(update_1)], Tasks{sum_2}) << "its lane has the order";
  for (const std::size_t task : {0, 1, 3, 4, static_cast<int>(update_2), 9})
    EXPECT_EQ(found[task], Tasks{}) << task;
  EXPECT_EQ(lanes_of(program), (std::vector<LaneId>{0, 0, 1, 0, 2, 1, 1, 0, 0, 0, 0}));
}

TEST(Dependencies, OfAProgramOfOneRankAreNone) {
  StepProgram program("step");
  program.run(kCompute, inline_task("forward", {}, {}));
  program.run(kCompute, inline_task("update", {}, {}));
  program.finalize();
  EXPECT_EQ(find_dependencies(program), (std::vector<Tasks>{{}, {}}));
}

}  // namespace
}  // namespace cifar_mpi::engine
