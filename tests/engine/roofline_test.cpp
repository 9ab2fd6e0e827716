#include "cifar_mpi/engine/roofline.hpp"

#include <gtest/gtest.h>

#include <array>

namespace cifar_mpi::engine {
namespace {

Task task_of(const std::array<float, 100>& memory, Cost cost) {
  Task task;
  task.reads = {bytes_of(memory.data(), 20), bytes_of(memory.data() + 20, 5)};
  task.writes = {bytes_of(memory.data(), 20)};
  task.cost = cost;
  return task;
}

TEST(Budget, CountsWhatATaskDeclaresUnlessItNeedsLess) {
  const std::array<float, 100> memory{};
  EXPECT_EQ(bytes_moved(task_of(memory, {})), 45.0 * sizeof(float));
  EXPECT_EQ(bytes_moved(task_of(memory, {.bytes = 7.0})), 7.0);
  EXPECT_EQ(bytes_moved(Task{}), 0.0);
}

TEST(Budget, IsTheLongerOfProductsAndBytes) {
  const RooflineLimits limits{.flops = 100.0, .bytes = 10.0};
  EXPECT_EQ(floor_seconds(400.0, 30.0, limits), 4.0);
  EXPECT_EQ(floor_seconds(200.0, 30.0, limits), 3.0);
  EXPECT_EQ(floor_seconds(0.0, 0.0, limits), 0.0);
}

TEST(Budget, TakesNoTimeForWhatIsNotLimited) {
  EXPECT_EQ(floor_seconds(50.0, 1e9, {.flops = 100.0}), 0.5);
  EXPECT_EQ(floor_seconds(1e9, 50.0, {.bytes = 100.0}), 0.5);
}

}  // namespace
}  // namespace cifar_mpi::engine
