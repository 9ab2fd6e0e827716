#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "cifar_mpi/data/dataset.hpp"

namespace cifar_mpi::data {
namespace {

TEST(Synthetic, IsAFunctionOfItsArguments) {
  Samples train, test, again, other, unused;
  make_synthetic({16, 16, 3}, 4, 40, 1, train, test);
  make_synthetic({16, 16, 3}, 4, 40, 1, again, unused);
  make_synthetic({16, 16, 3}, 4, 40, 2, other, unused);
  EXPECT_TRUE(train.images == again.images);
  EXPECT_FALSE(train.images == other.images);
  EXPECT_FALSE(std::equal(test.images.begin(), test.images.end(), train.images.begin()));
  Samples longer;
  make_synthetic({16, 16, 3}, 4, 80, 1, longer, unused);
  EXPECT_TRUE(std::equal(train.images.begin(), train.images.end(), longer.images.begin()));
}

TEST(Synthetic, HasEveryClassEquallyOften) {
  Samples train, test;
  make_synthetic({8, 8, 1}, 7, 70, 1, train, test);
  EXPECT_EQ(train.labels.size(), 70u);
  EXPECT_EQ(test.labels.size(), 14u);
  for (std::uint8_t label = 0; label < 7; ++label) {
    EXPECT_EQ(std::count(train.labels.begin(), train.labels.end(), label), 10);
  }
  make_synthetic({8, 8, 1}, 7, 5, 1, train, test);
  EXPECT_EQ(test.labels.size(), 7u) << "a test set has every class";
}

TEST(Synthetic, CanBeLearnt) {
  const Extent image{32, 32, 3};
  const int classes = 10;
  Samples train, test;
  make_synthetic(image, classes, 1000, 1, train, test);
  const auto values = static_cast<std::size_t>(image.count());
  std::vector<double> mean(classes * values, 0.0);
  for (std::size_t i = 0; i < train.labels.size(); ++i) {
    for (std::size_t v = 0; v < values; ++v)
      mean[train.labels[i] * values + v] += train.images[i * values + v] / 100.0;
  }
  int correct = 0;
  for (std::size_t i = 0; i < test.labels.size(); ++i) {
    std::vector<double> distance(classes, 0.0);
    for (std::size_t k = 0; k < distance.size(); ++k) {
      for (std::size_t v = 0; v < values; ++v) {
        const double d = test.images[i * values + v] - mean[k * values + v];
        distance[k] += d * d;
      }
    }
    const auto nearest = std::min_element(distance.begin(), distance.end()) - distance.begin();
    correct += nearest == test.labels[i] ? 1 : 0;
  }
  // Even the nearest class mean, which knows nothing of shifts, is far above one in ten; and it is not
  // trivial.
  RecordProperty("correct", correct);
  EXPECT_GT(correct, 120);
  EXPECT_EQ(test.labels.size(), 200u);
}

}  // namespace
}  // namespace cifar_mpi::data
