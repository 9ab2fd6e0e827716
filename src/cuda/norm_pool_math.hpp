#pragma once

#include <cstddef>

#include "cuda/norm_math.hpp"
#include "cuda/pool_math.hpp"

/// How a normalization and the max-pooling next to it are cut into blocks; runs on the host and on the
/// device.
namespace cifar_mpi::cuda {

/// Rows [begin, end) of an image.
struct Rows {
  int begin = 0;
  int end = 0;

  constexpr int count() const { return end - begin; }
};

/// Rows of the pooling's input that the windows of output rows `out` cover.
constexpr Rows rows_under(const PoolPlace& place, const Rows& out) {
  const int begin = place.stride * out.begin - place.before_y;
  const int end = place.stride * (out.end - 1) - place.before_y + place.kernel;
  return {begin < 0 ? 0 : begin, end > place.in_height ? place.in_height : end};
}

/// Rows of the pooling's output whose windows hold a place of the input rows `in`; none where no window does.
constexpr Rows rows_over(const PoolPlace& place, const Rows& in) {
  const int begin = first_window(in.begin, place.kernel, place.stride, place.before_y);
  const int end = (in.end - 1 + place.before_y) / place.stride + 1;
  const int last = end > place.out_height ? place.out_height : end;
  return {begin, last < begin ? begin : last};
}

/// Rows that a block writes: few, so that there are many blocks, and more than one, because the rows next to
/// them are worked out twice.
constexpr int kPooledRows = 2;  ///< of the output, in the forward pass of a pooling behind a normalization
constexpr int kInputRows = 4;   ///< of the input, in the backward pass of a pooling before a normalization

constexpr int pieces(int rows, int of) { return (rows + of - 1) / of; }
constexpr Rows piece(int rows, int of, int index) {
  const int begin = index * of;
  return {begin, begin + of < rows ? begin + of : rows};
}

/// Values that a block shares, at most.
constexpr std::size_t normalized_values(const PoolPlace& place) {
  const int rows = place.stride * (kPooledRows - 1) + place.kernel;
  return static_cast<std::size_t>(rows < place.in_height ? rows : place.in_height) *
         static_cast<std::size_t>(place.in_width) * static_cast<std::size_t>(place.channels);
}
constexpr std::size_t pooled_values(const PoolPlace& place) {
  const int rows = (kInputRows + place.kernel - 2) / place.stride + 1;
  return static_cast<std::size_t>(rows < place.out_height ? rows : place.out_height) *
         static_cast<std::size_t>(place.out_width) * static_cast<std::size_t>(place.channels);
}

/// Whether a block has room for them: without asking a GPU for more, 48 KiB.
constexpr bool fits_norm_pool(const PoolPlace& place) {
  constexpr std::size_t kShared = 48 << 10;
  return 2 * sizeof(float) * pooled_values(place) <= kShared &&
         sizeof(float) * normalized_values(place) <= kShared;
}

}  // namespace cifar_mpi::cuda
