#include "cifar_mpi/model/whitening.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "cifar_mpi/base/random.hpp"

namespace cifar_mpi::model {
namespace {

double noise(std::uint64_t i) {
  return 2.0 * static_cast<double>(uniform01(random4(1, RandomPurpose::synthetic, i, 0)[0])) - 1.0;
}

TEST(Eigen, TakesASymmetricMatrixApart) {
  for (const std::size_t n : {1u, 2u, 5u, 12u}) {
    std::vector<double> matrix(n * n);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j <= i; ++j) matrix[i * n + j] = matrix[j * n + i] = noise(i * n + j);
    }
    const Eigen eigen = eigen_of(matrix, n);
    for (std::size_t a = 0; a < n; ++a) {
      const double* const v = &eigen.vectors[a * n];
      EXPECT_LE(eigen.values[a], eigen.values[a > 0 ? a - 1 : 0]);
      for (std::size_t b = 0; b < n; ++b) {
        double dot = 0.0;
        for (std::size_t i = 0; i < n; ++i) dot += v[i] * eigen.vectors[b * n + i];
        EXPECT_NEAR(dot, a == b ? 1.0 : 0.0, 1e-14) << n;
      }
      for (std::size_t i = 0; i < n; ++i) {
        double product = 0.0;
        for (std::size_t j = 0; j < n; ++j) product += matrix[i * n + j] * v[j];
        EXPECT_NEAR(product, eigen.values[a] * v[i], 1e-13) << n;
      }
    }
  }
}

TEST(Eigen, KeepsADiagonalMatrixAndEqualValues) {
  const Eigen eigen = eigen_of({1.0, 0.0, 0.0, 0.0, 3.0, 0.0, 0.0, 0.0, 1.0}, 3);
  EXPECT_EQ(eigen.values, (std::vector<double>{3.0, 1.0, 1.0}));
  EXPECT_EQ(eigen.vectors, (std::vector<double>{0, 1, 0, 1, 0, 0, 0, 0, 1}));
}

/// Images whose neighbouring pixels and channels are alike: F·M·Fᵀ of the filters F is λ / (λ + 5e-4) on the diagonal.
TEST(PatchMoments, GivesFiltersThatWhitenThePatches) {
  constexpr std::size_t kSize = 12;
  const Extent extent{9, 7, 3};
  PatchMoments moments(2, 3);
  std::vector<double> second(kSize * kSize, 0.0);
  double patches = 0.0;
  for (std::uint64_t n = 0; n < 5; ++n) {
    std::vector<float> image;
    for (int i = 0; i < extent.count(); ++i)
      image.push_back(static_cast<float>(std::sin(0.1 * i + static_cast<double>(n)) +
                                         0.2 * noise(n * 1000 + static_cast<std::uint64_t>(i))));
    moments.add(extent, image);
    for (int y = 0; y < 8; ++y) {
      for (int x = 0; x < 6; ++x) {
        double patch[kSize];
        for (int i = 0; i < 12; ++i)
          patch[i] = static_cast<double>(
              image[static_cast<std::size_t>(((y + i / 6) * 7 + x + i / 3 % 2) * 3 + i % 3)]);
        for (std::size_t i = 0; i < kSize * kSize; ++i) second[i] += patch[i / kSize] * patch[i % kSize];
        patches += 1.0;
      }
    }
  }
  std::vector<float> filters(kSize * 2 * kSize), again(filters.size());
  moments.whitening_filters(filters);
  moments.whitening_filters(again);
  EXPECT_EQ(filters, again);
  const auto filter = [&](std::size_t f, std::size_t i) { return static_cast<double>(filters[i * 24 + f]); };
  double before = INFINITY;
  for (std::size_t f = 0; f < kSize; ++f) {
    double length = 0.0, largest = 0.0;
    for (std::size_t i = 0; i < kSize; ++i) {
      EXPECT_EQ(filter(f + kSize, i), -filter(f, i));
      length += filter(f, i) * filter(f, i);
      if (std::abs(filter(f, i)) > std::abs(largest)) largest = filter(f, i);
    }
    EXPECT_GT(largest, 0.0);
    const double value = 1.0 / length - 5e-4;  // the eigenvalue
    EXPECT_LE(value, before * (1.0 + 1e-5));
    before = value;
    for (std::size_t g = 0; g < kSize; ++g) {
      double product = 0.0;
      for (std::size_t i = 0; i < kSize * kSize; ++i)
        product += filter(f, i / kSize) * second[i] / patches * filter(g, i % kSize);
      // filters are fp32, and the largest eigenvalue is some hundred times the smallest
      EXPECT_NEAR(product, f == g ? value / (value + 5e-4) : 0.0, 1e-4) << f << ", " << g;
    }
  }
}

}  // namespace
}  // namespace cifar_mpi::model
