#pragma once

#include <cstdint>

#include "cuda/launch.cuh"
#include "cuda/sum.hpp"
#include "cuda/vec8.cuh"

/// Kernels over a matrix [rows, channels] that treat all values of a column alike: a block takes a tile of at
/// most kColumnTile columns and some of the rows. Each thread along x has a slice of a row, kVec8 values if
/// the columns form vec8s and one otherwise; y counts rows, up to kThreads threads.
namespace cifar_mpi::cuda {

constexpr int tile_columns(int columns) { return columns < kColumnTile ? columns : kColumnTile; }

/// The threads of a block; column_counters(columns) tiles.
inline dim3 tile_threads(int columns, int width) {
  const int slices = tile_columns(columns) / width;
  return {static_cast<unsigned>(slices), static_cast<unsigned>(kThreads / slices)};
}

/// Calls `launcher` with the width of a slice as a constant.
template <class Launcher>
void with_width(int columns, Launcher launcher) {
  if (columns % kVec8 == 0) {
    launcher(std::integral_constant<int, kVec8>{});
  } else {
    launcher(std::integral_constant<int, 1>{});
  }
}

/// The first column of this thread's slice in tile `tile`.
template <int kWidth>
__device__ int tile_column(unsigned tile) {
  return static_cast<int>(tile) * kColumnTile + static_cast<int>(threadIdx.x) * kWidth;
}

/// Calls `use(place, slices)` for this thread's rows of [begin, end): the offset of its slice in each array,
/// and the values there. Loads some rows ahead of the first use.
template <int kWidth, int kArrays, class T, class Use>
__device__ void visit_rows(const T* const (&arrays)[kArrays], std::int64_t begin, std::int64_t end,
                           int columns, int column, Use use) {
  constexpr int kAhead = 4;
  const std::int64_t apart = blockDim.y, step = apart * columns;
  std::int64_t row = begin + threadIdx.y, place = row * columns + column;
  Slice<T, kWidth> slices[kAhead][kArrays];
  const auto load = [&](int j) {
    for (int a = 0; a < kArrays; ++a) {
      slices[j][a] = *reinterpret_cast<const Slice<T, kWidth>*>(arrays[a] + place + j * step);
    }
  };
#pragma unroll 1
  for (; row + (kAhead - 1) * apart < end; row += kAhead * apart, place += kAhead * step) {
    for (int j = 0; j < kAhead; ++j) load(j);
    for (int j = 0; j < kAhead; ++j) use(place + j * step, slices[j]);
  }
#pragma unroll 1
  for (; row < end; row += apart, place += step) {
    load(0);
    use(place, slices[0]);
  }
}

/// Sums each value over the threads of the block with the same threadIdx.x, in an order that depends only on
/// their number; threads with threadIdx.y = 0 get the sums. All threads call it.
template <int kValues>
__device__ void add_over_rows(float (&mine)[kValues]) {
  __shared__ float all[kValues][kThreads];
  const unsigned me = threadIdx.y * blockDim.x + threadIdx.x;
  for (int i = 0; i < kValues; ++i) all[i][me] = mine[i];
#pragma unroll 1
  for (unsigned count = blockDim.y; count > 1;) {
    const unsigned half = (count + 1) / 2;
    __syncthreads();
    if (threadIdx.y + half < count) {
      for (int i = 0; i < kValues; ++i) all[i][me] += all[i][me + half * blockDim.x];
    }
    count = half;
  }
  __syncthreads();
  for (int i = 0; i < kValues; ++i) mine[i] = all[i][me];
  __syncthreads();
}

}  // namespace cifar_mpi::cuda
