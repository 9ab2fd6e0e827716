#include "cifar_mpi/model/whitening.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>

namespace cifar_mpi::model {
namespace {

/// Added to eigenvalues: directions in which patches hardly differ are noise, which must not grow.
constexpr double kEpsilon = 5e-4;

/// Turns rows (and columns) p and q of the symmetric matrix so that its entry (p, q) becomes 0, and the rows of `vectors` too.
void rotate(std::vector<double>& matrix, std::vector<double>& vectors, std::size_t n, std::size_t p,
            std::size_t q) {
  const double apart = matrix[p * n + q];
  if (apart == 0.0) return;
  // tan of the angle: the smaller root of t² + 2t·half − 1 = 0
  const double half = (matrix[q * n + q] - matrix[p * n + p]) / (2.0 * apart);
  const double tangent = (half < 0.0 ? -1.0 : 1.0) / (std::abs(half) + std::sqrt(half * half + 1.0));
  const double c = 1.0 / std::sqrt(tangent * tangent + 1.0), s = tangent * c;
  const auto turn = [&](double& a, double& b) {
    const double first = c * a - s * b;
    b = s * a + c * b;
    a = first;
  };
  for (std::size_t i = 0; i < n; ++i) turn(matrix[i * n + p], matrix[i * n + q]);
  for (std::size_t i = 0; i < n; ++i) turn(matrix[p * n + i], matrix[q * n + i]);
  for (std::size_t i = 0; i < n; ++i) turn(vectors[p * n + i], vectors[q * n + i]);
}

/// The sum of the squares beside the diagonal.
double off_diagonal(const std::vector<double>& matrix, std::size_t n) {
  double sum = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < i; ++j) sum += matrix[i * n + j] * matrix[i * n + j];
  }
  return sum;
}

}  // namespace

Eigen eigen_of(std::vector<double> matrix, std::size_t n) {
  constexpr int kMostSweeps = 60;  // each at least halves what is left, near the end it squares it
  double size = 0.0;
  for (const double value : matrix) size += value * value;
  std::vector<double> vectors(n * n, 0.0);
  for (std::size_t i = 0; i < n; ++i) vectors[i * n + i] = 1.0;
  for (int sweep = 0; sweep < kMostSweeps && off_diagonal(matrix, n) > 1e-32 * size; ++sweep) {
    for (std::size_t p = 0; p < n; ++p) {
      for (std::size_t q = p + 1; q < n; ++q) rotate(matrix, vectors, n, p, q);
    }
  }
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(
      order, [&](std::size_t a, std::size_t b) { return matrix[a * n + a] > matrix[b * n + b]; });
  Eigen sorted;
  for (const std::size_t i : order) {
    sorted.values.push_back(matrix[i * n + i]);
    sorted.vectors.insert(sorted.vectors.end(), &vectors[i * n], &vectors[i * n] + n);
  }
  return sorted;
}

PatchMoments::PatchMoments(int kernel, int channels)
    : kernel_(kernel),
      size_(static_cast<std::size_t>(kernel * kernel * channels)),
      sums_(size_ * size_, 0.0) {}

void PatchMoments::add(const Extent& extent, std::span<const float> image) {
  assert(image.size() == static_cast<std::size_t>(extent.count()));
  const auto run = static_cast<std::size_t>(kernel_ * extent.channels);  // a row of a patch
  std::vector<double> patch(size_);
  for (int y = 0; y + kernel_ <= extent.height; ++y) {
    for (int x = 0; x + kernel_ <= extent.width; ++x) {
      for (int row = 0; row < kernel_; ++row) {
        const auto from = static_cast<std::size_t>(((y + row) * extent.width + x) * extent.channels);
        for (std::size_t i = 0; i < run; ++i)
          patch[static_cast<std::size_t>(row) * run + i] = static_cast<double>(image[from + i]);
      }
      for (std::size_t i = 0; i < size_; ++i) {
        for (std::size_t j = 0; j <= i; ++j) sums_[i * size_ + j] += patch[i] * patch[j];
      }
      patches_ += 1.0;
    }
  }
}

void PatchMoments::whitening_filters(std::span<float> filters) const {
  assert(patches_ > 0.0 && filters.size() == 2 * size_ * size_);
  std::vector<double> moments(size_ * size_);
  for (std::size_t i = 0; i < size_; ++i) {
    for (std::size_t j = 0; j <= i; ++j)
      moments[i * size_ + j] = moments[j * size_ + i] = sums_[i * size_ + j] / patches_;
  }
  const Eigen eigen = eigen_of(std::move(moments), size_);
  for (std::size_t f = 0; f < size_; ++f) {
    const double* const vector = &eigen.vectors[f * size_];
    const double* const largest = std::max_element(
        vector, vector + size_, [](double a, double b) { return std::abs(a) < std::abs(b); });
    const double scale = (*largest < 0.0 ? -1.0 : 1.0) / std::sqrt(std::max(eigen.values[f], 0.0) + kEpsilon);
    for (std::size_t i = 0; i < size_; ++i) {
      const auto value = static_cast<float>(scale * vector[i]);
      filters[i * 2 * size_ + f] = value;
      filters[i * 2 * size_ + size_ + f] = -value;
    }
  }
}

}  // namespace cifar_mpi::model
