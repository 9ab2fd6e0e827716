#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "selfcheck/device_checks.hpp"

/// Parts of the self-check that need no run.
namespace cifar_mpi::selfcheck {
namespace {

/// More than 20 times the roofline time, over 100 µs, and no collective.
TEST(SlowTasks, AreFarFromTheirFloorAndLong) {
  engine::StepProgram program("step");
  std::vector<float> memory(250'000);
  const auto add = [&](const char* name, double flops, std::size_t floats, engine::TaskKind kind = {}) {
    engine::Task task{name, {engine::bytes_of(memory.data(), floats)}, {}, [](engine::Lane&) {}, {}};
    task.cost.flops = flops;
    task.kind = kind;
    program.run(engine::kCompute, std::move(task));
  };
  add("by bytes", 0.0, 250'000);  // at least 1 ms
  add("by operations", 2e6, 1);   // at least 2 ms
  add("short", 0.0, 1);
  add("sum", 0.0, 1, engine::TaskKind::collective);
  program.finalize();
  const engine::RooflineLimits limits{1e9, 1e9};
  const auto names = [&](const std::vector<double>& seconds) {
    std::string text;
    for (const SlowTask& slow : slow_tasks(program, seconds, limits)) text += slow.task + ", ";
    return text;
  };
  EXPECT_EQ(names({0.0199, 0.0399, 99e-6, 1.0}), "");
  EXPECT_EQ(names({0.0201, 0.0399, 99e-6, 1.0}), "by bytes, ");
  EXPECT_EQ(names({0.0201, 0.0401, 101e-6, 1.0}), "by operations, by bytes, short, ");
}

TEST(DistinctImages, DivideTheBatch) {
  EXPECT_EQ(distinct_images(128), 8);
  EXPECT_EQ(distinct_images(100), 10);
  EXPECT_EQ(distinct_images(8), 8);
  EXPECT_EQ(distinct_images(3), 3);
  EXPECT_EQ(distinct_images(127), 127);
}

}  // namespace
}  // namespace cifar_mpi::selfcheck
