#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "page/chart.hpp"

namespace cifar_mpi::page {
namespace {

TEST(Thin, KeepsFewValuesAsTheyAre) {
  const std::vector<double> values{3.0, 1.0, 2.0};
  const std::vector<Thinned> points = thin(values, 3);
  ASSERT_EQ(points.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(points[i].index, i);
    EXPECT_EQ(points[i].low, values[i]);
    EXPECT_EQ(points[i].mean, values[i]);
    EXPECT_EQ(points[i].high, values[i]);
  }
  EXPECT_TRUE(thin({}, 3).empty());
}

TEST(Thin, LosesNoPeakAndKeepsTheLastValue) {
  std::vector<double> values(100'000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(1e-3 * static_cast<double>(i));
  values[12'345] = 50.0;
  values[67'890] = -50.0;
  values.back() = 7.0;
  const std::vector<Thinned> points = thin(values, 320);
  ASSERT_EQ(points.size(), 320u);
  EXPECT_EQ(points.back().index, values.size() - 1);
  EXPECT_EQ(points.back().mean, 7.0);
  std::size_t begin = 0;
  for (const Thinned& point : points) {
    ASSERT_GE(point.index, begin);
    const auto first = values.begin() + static_cast<std::ptrdiff_t>(begin),
               end = values.begin() + static_cast<std::ptrdiff_t>(point.index) + 1;
    EXPECT_EQ(point.low, *std::min_element(first, end));
    EXPECT_EQ(point.high, *std::max_element(first, end));
    EXPECT_GE(point.mean, point.low);
    EXPECT_LE(point.mean, point.high);
    begin = point.index + 1;
  }
}

TEST(Thin, CountsNoValueThatIsNone) {
  const double nan = std::nan("");
  const std::vector<Thinned> points = thin(std::vector<double>{nan, nan, 1.0, nan, 3.0, nan, 5.0}, 4);
  ASSERT_EQ(points.size(), 4u);
  EXPECT_TRUE(std::isnan(points[0].mean));
  EXPECT_TRUE(std::isnan(points[0].low));
  EXPECT_EQ(points[1].mean, 1.0);
  EXPECT_EQ(points[2].mean, 3.0);
  EXPECT_EQ(points[3].mean, 5.0);
}

}  // namespace
}  // namespace cifar_mpi::page
