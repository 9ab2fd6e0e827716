#include "cpu/sum.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace cifar_mpi::cpu {
namespace {

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
