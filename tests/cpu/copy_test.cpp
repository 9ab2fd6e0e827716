#include "cpu/copy.hpp"

#include <gtest/gtest.h>

#include <numeric>
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

TEST(Sum, AddsOrCopiesAlsoInPlace) {
  for (const std::size_t n : {0, 1, 17, 1000}) {
    std::vector<float> a(n), b(n, 0.5f), dst(n, -1.0f), expected(n);
    std::iota(a.begin(), a.end(), 1.0f);
    for (std::size_t i = 0; i < n; ++i) expected[i] = a[i] + 0.5f;
    engine::Lane lane;
    plan_sum("add", {dst.data(), a.data(), b.data(), n}).start(lane);
    EXPECT_EQ(dst, expected);
    plan_sum("copy", {dst.data(), a.data(), nullptr, n}).start(lane);
    EXPECT_EQ(dst, a);
    plan_sum("add in place", {b.data(), a.data(), b.data(), n}).start(lane);
    EXPECT_EQ(b, expected);
  }
}

TEST(Sum, TakesAShareOfADifferenceOrOfAValueAlsoInPlace) {
  for (const std::size_t n : {0, 1, 17, 1000}) {
    std::vector<float> a(n), b(n, 0.5f), dst(n, -1.0f), of_a(n), of_difference(n);
    std::iota(a.begin(), a.end(), 1.0f);
    for (std::size_t i = 0; i < n; ++i) of_a[i] = 0.25f * a[i], of_difference[i] = 0.25f * (a[i] - 0.5f);
    engine::Lane lane;
    plan_sum("move", {dst.data(), a.data(), b.data(), n, 0.25f, -1.0f}).start(lane);
    EXPECT_EQ(dst, of_difference);
    plan_sum("share", {dst.data(), a.data(), nullptr, n, 0.25f, -1.0f}).start(lane);
    EXPECT_EQ(dst, of_a);
    plan_sum("in place", {b.data(), a.data(), b.data(), n, 0.25f, -1.0f}).start(lane);
    EXPECT_EQ(b, of_difference);
  }
}

TEST(Sum, DeclaresWhatItTouches) {
  std::vector<float> a(8), b(8), dst(8);
  const engine::Task task = plan_sum("add", {dst.data(), a.data(), b.data(), 8});
  ASSERT_EQ(task.reads.size(), 2u);
  ASSERT_EQ(task.writes.size(), 1u);
  EXPECT_TRUE(task.reads[0].overlaps(engine::bytes_of(a.data(), 8)));
  EXPECT_TRUE(task.reads[1].overlaps(engine::bytes_of(b.data(), 8)));
  EXPECT_EQ(task.writes[0].size, 8 * sizeof(float));
}

}  // namespace
}  // namespace cifar_mpi::cpu
