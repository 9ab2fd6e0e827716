#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "cifar_mpi/base/shape.hpp"

namespace cifar_mpi::model {

/// The second moments of all k×k patches of images, and the filters of a convolution that whiten them.
///
/// With M = mean of p·pᵀ over the patches p (not centred) and its eigenvectors v of length 1 and eigenvalues λ, the filters are
/// v / √(λ + 5e-4), from the largest eigenvalue to the smallest, and then their negatives. The entry of v with the largest
/// magnitude, the first of equals, is positive.
///
/// Sums are double and in the order of the images, and the eigenvectors come from rotations in a fixed order (Jacobi), so the
/// filters are a function of the images alone, whatever the ranks, threads and devices.
class PatchMoments {
 public:
  PatchMoments(int kernel, int channels);
  /// `image` [height, width, channels].
  void add(const Extent& extent, std::span<const float> image);
  /// `filters` [k, k, channels, 2·k·k·channels]. There must be an image.
  void whitening_filters(std::span<float> filters) const;

 private:
  int kernel_;
  std::size_t size_;          ///< of a patch
  std::vector<double> sums_;  ///< [size, size], the lower triangle
  double patches_ = 0.0;
};

/// The eigenvalues of a symmetric matrix [n, n] in row-major order, largest first, and their eigenvectors of length 1 as rows.
struct Eigen {
  std::vector<double> values;   ///< [n]
  std::vector<double> vectors;  ///< [n, n]
};
Eigen eigen_of(std::vector<double> matrix, std::size_t n);

}  // namespace cifar_mpi::model
