#pragma once

#include <cstddef>

#include "cuda/lrn_math.hpp"
#include "cuda/pool_math.hpp"

/// Division of a normalization and its adjacent max-pooling into blocks; runs on the host and on the device.
namespace cifar_mpi::cuda {

/// The shapes of the fused kernels; others use two kernels. Constants, so that all loops, divisions and
/// powers are resolved.
constexpr int kPoolKernel = 3;
constexpr int kPoolStride = 2;
constexpr int kLrnRadius = 4;
constexpr float kLrnBeta = 0.75f;

/// Threads of a block; a pixel's vec8s of channels must not be divided between blocks.
constexpr int kLrnPoolThreads = 256;
constexpr int kVec8Channels = 8;

constexpr int vec8s(const PoolPlace& place) { return place.channels / kVec8Channels; }

/// The place of an axis that is nearest to `i`.
constexpr int nearest(int i, int places) { return i < 0 ? 0 : i < places ? i : places - 1; }

/// Rows [begin, end) of an image.
struct Rows {
  int begin = 0;
  int end = 0;

  constexpr int count() const { return end - begin; }
};

constexpr int pieces(int rows, int of) { return (rows + of - 1) / of; }
constexpr Rows piece(int rows, int of, int index) {
  const int begin = index * of;
  return {begin, begin + of < rows ? begin + of : rows};
}

/// Output rows per block when the pooling comes last: few, for many blocks, but more than one, because the
/// rows between two blocks are normalized twice.
constexpr int kPooledRows = 2;

/// Rows of the pooling's input that the windows of output rows `out` cover.
constexpr Rows rows_under(const PoolPlace& place, const Rows& out) {
  const int begin = kPoolStride * out.begin - place.before_y;
  const int end = kPoolStride * (out.end - 1) - place.before_y + kPoolKernel;
  return {begin < 0 ? 0 : begin, end > place.in_height ? place.in_height : end};
}

/// Backward, the places of the pooling's input are divided into cells of stride · stride, one for each window
/// that begins there: only windows (oy − 1 … oy, ox − 1 … ox) hold places of cell (oy, ox).
constexpr int kCellRows = 3;  ///< per block when the pooling comes first, for the reason of kPooledRows

/// Rows of windows that hold places of cell rows `in`.
constexpr Rows rows_over(const Rows& in) { return {in.begin > 0 ? in.begin - 1 : 0, in.end}; }

/// Values that a block shares, at most.
constexpr std::size_t normalized_values(const PoolPlace& place) {
  const int rows = kPoolStride * (kPooledRows - 1) + kPoolKernel;
  return static_cast<std::size_t>(rows < place.in_height ? rows : place.in_height) *
         static_cast<std::size_t>(place.in_width) * static_cast<std::size_t>(place.channels);
}
constexpr std::size_t pooled_values(const PoolPlace& place) {
  const int rows = kCellRows + 1;
  return static_cast<std::size_t>(rows < place.out_height ? rows : place.out_height) *
         static_cast<std::size_t>(place.out_width) * static_cast<std::size_t>(place.channels);
}

/// Whether cells cover the input, as they do with TensorFlow's SAME padding.
constexpr bool has_cells(int in, int out, int before) {
  return out == (in + 1) / kPoolStride && before == in % kPoolStride;
}

/// Whether the fused kernels accept these; a block has 48 KiB without a special request.
constexpr bool fits_lrn_pool(const PoolPlace& place, const LrnRule& rule) {
  constexpr std::size_t kShared = 48 << 10;
  const int groups = vec8s(place);
  return place.kernel == kPoolKernel && place.stride == kPoolStride &&
         has_cells(place.in_height, place.out_height, place.before_y) &&
         has_cells(place.in_width, place.out_width, place.before_x) && rule.radius == kLrnRadius &&
         rule.beta == kLrnBeta && place.channels % kVec8Channels == 0 && groups <= kLrnPoolThreads &&
         kLrnPoolThreads % groups == 0 && 2 * sizeof(float) * pooled_values(place) <= kShared &&
         sizeof(float) * normalized_values(place) <= kShared;
}

}  // namespace cifar_mpi::cuda
