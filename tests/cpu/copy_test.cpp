#include "cpu/copy.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace cifar_mpi::cpu {
namespace {

TEST(CpuCopy, CopiesAllThatItIsGivenAndSaysSo) {
  const std::vector<float> from{1.0f, 2.0f, 3.0f};
  std::vector<float> a(2), b(1);
  const auto at = [](const float* array) { return reinterpret_cast<const std::byte*>(array); };
  const auto to = [](std::vector<float>& array) { return reinterpret_cast<std::byte*>(array.data()); };
  const engine::Task task = plan_copy(
      "copy", {{to(a), at(from.data()), 2 * sizeof(float)}, {to(b), at(from.data() + 2), sizeof(float)}, {}});
  engine::Lane lane;
  task.start(lane);
  EXPECT_EQ(a, (std::vector<float>{1.0f, 2.0f}));
  EXPECT_EQ(b, (std::vector<float>{3.0f}));
  ASSERT_EQ(task.reads.size(), 3u);
  ASSERT_EQ(task.writes.size(), 3u);
  EXPECT_EQ(task.reads[1].begin, at(from.data() + 2));
  EXPECT_EQ(task.writes[0].begin, to(a));
  EXPECT_EQ(task.writes[0].size, 2 * sizeof(float));
}

TEST(CpuIncrement, CountsUp) {
  std::uint64_t counter = 41;
  engine::Lane lane;
  plan_increment("count", &counter).start(lane);
  EXPECT_EQ(counter, 42u);
}

}  // namespace
}  // namespace cifar_mpi::cpu
