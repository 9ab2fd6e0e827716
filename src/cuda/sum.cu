#include "cuda/launch.cuh"
#include "cuda/sum.hpp"
#include "cuda/vec8.cuh"

namespace cifar_mpi::cuda {
namespace {

__global__ void add_two(float* dst, const float* a, const float* b, std::int64_t count, float share,
                        float sign) {
  const std::int64_t i = thread_index();
  if (i < count) dst[i] = share * (b == nullptr ? a[i] : a[i] + sign * b[i]);
}

__global__ void add_tree(float* __restrict__ dst, const float* __restrict__ gathered, std::int64_t count,
                         int ranks) {
  const std::int64_t i = thread_index();
  if (i < count) dst[i] = tree_sum(ranks, [&](int rank) { return gathered[rank * count + i]; });
}

/// The same for a power of two: registers hold all values of a thread, so its reads overlap. add_tree reads
/// one after another and keeps its subtotals in memory. The launch bounds give the compiler enough registers.
template <int kRanks>
__global__ void __launch_bounds__(kThreads, 2)
    add_tree_of(float* __restrict__ dst, const float* __restrict__ gathered, std::int64_t count) {
  const std::int64_t i = thread_index();
  if (i >= count) return;
  float values[kRanks];
#pragma unroll
  for (int rank = 0; rank < kRanks; ++rank) values[rank] = gathered[rank * count + i];
  dst[i] = tree_of<kRanks>(values);
}

constexpr int kMostInRegisters = 64;

template <int kRanks = 2>
void launch_tree(cudaStream_t stream, float* dst, const float* gathered, std::int64_t count, int ranks) {
  if (ranks == kRanks) {
    launch("sum over ranks", stream, grid_for(count), add_tree_of<kRanks>, dst, gathered, count);
  } else if constexpr (kRanks < kMostInRegisters) {
    launch_tree<2 * kRanks>(stream, dst, gathered, count, ranks);
  } else {
    launch("sum over ranks", stream, grid_for(count), add_tree, dst, gathered, count, ranks);
  }
}

/// Each thread takes a vec8 of a row if the columns form vec8s, else one value. In a block, x counts the
/// columns of a tile, and y as many rows as fit kThreads.
template <int kWidth>
constexpr int kSlices = kColumnTile / kWidth;
template <int kWidth>
constexpr int kRowThreads = kThreads / kSlices<kWidth>;

/// Adds a slice of kRows rows at distance `apart`, zeroed where masked. Loads all before the first use.
template <bool kMasks, int kRows, class T, int kWidth>
__device__ void add_slices(T* grad, const T* y, std::int64_t apart, float (&sums)[kWidth]) {
  using Values = Slice<T, kWidth>;
  Values grads[kRows], outputs[kMasks ? kRows : 1];
  for (int j = 0; j < kRows; ++j) {
    grads[j] = *reinterpret_cast<const Values*>(grad + j * apart);
    if constexpr (kMasks) outputs[j] = *reinterpret_cast<const Values*>(y + j * apart);
  }
  for (int j = 0; j < kRows; ++j) {
    if constexpr (kMasks) {
      for (int i = 0; i < kWidth; ++i) {
        if (!(to_float(outputs[j].values[i]) > 0.0f)) grads[j].values[i] = from_float<T>(0.0f);
      }
      *reinterpret_cast<Values*>(grad + j * apart) = grads[j];
    }
    for (int i = 0; i < kWidth; ++i) sums[i] += to_float(grads[j].values[i]);
  }
}

/// Adds a slice of this thread's rows of [row, end), which are kRowThreads apart.
template <bool kMasks, class T, int kWidth>
__device__ void add_rows_of(const ColumnSum& work, std::int64_t row, std::int64_t end, int column,
                            float (&sums)[kWidth]) {
  constexpr int kApart = kRowThreads<kWidth>, kAhead = 4;
  const std::int64_t apart = std::int64_t{kApart} * work.columns;
  T* grad = static_cast<T*>(work.grad) + row * work.columns + column;
  const T* y = kMasks ? static_cast<const T*>(work.y) + row * work.columns + column : nullptr;
#pragma unroll 1
  for (; row + (kAhead - 1) * kApart < end; row += kAhead * kApart) {
    add_slices<kMasks, kAhead>(grad, y, apart, sums);
    grad += kAhead * apart;
    if constexpr (kMasks) y += kAhead * apart;
  }
#pragma unroll 1
  for (; row < end; row += kApart) {
    add_slices<kMasks, 1>(grad, y, apart, sums);
    grad += apart;
    if constexpr (kMasks) y += apart;
  }
}

/// Adds rows of the chunk results, kRowThreads apart.
template <int kWidth>
__device__ void add_partials(const float* partials, int columns, int chunks, float (&sums)[kWidth]) {
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.y); i < chunks; i += kRowThreads<kWidth>) {
    const float* const from = partials + static_cast<std::int64_t>(i) * columns;
    if constexpr (kWidth == 1) {
      sums[0] += __ldcg(from);
    } else {
      static_assert(kWidth == kVec8);
      const float4 low = __ldcg(reinterpret_cast<const float4*>(from));
      const float4 high = __ldcg(reinterpret_cast<const float4*>(from + 4));
      const float values[kWidth] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      for (int j = 0; j < kWidth; ++j) sums[j] += values[j];
    }
  }
}

/// Thread `me` of the first kColumnTile gets the sum of column `me` over the block's rows, in a fixed order.
template <int kWidth>
__device__ float add_threads(const float (&mine)[kWidth], int me) {
  __shared__ float values[kRowThreads<kWidth>][kColumnTile];
  for (int i = 0; i < kWidth; ++i) values[threadIdx.y][static_cast<int>(threadIdx.x) * kWidth + i] = mine[i];
  __syncthreads();
  float sum = 0.0f;
  if (me < kColumnTile) {
    for (int i = 0; i < kRowThreads<kWidth>; ++i) sum += values[i][me];
  }
  __syncthreads();
  return sum;
}

/// Block (tile of columns, chunk of rows). Each block sums its chunk; the last block of a tile adds the
/// chunks in order, so the result does not depend on which block is last. Reads every value once; with a mask
/// it also reads y and writes the gradient. Some 25 instructions per vec8, 65 with a mask: the limit is
/// memory. Four blocks per multiprocessor leave each thread enough registers to overlap its loads.
template <class T, int kWidth, bool kMasks>
__global__ void __launch_bounds__(kThreads, 4) column_sum(ColumnSum work, ColumnChunks chunks) {
  const int first = static_cast<int>(blockIdx.x) * kColumnTile;
  const int column = first + static_cast<int>(threadIdx.x) * kWidth;
  const int chunk = static_cast<int>(blockIdx.y);
  const int me = static_cast<int>(threadIdx.y) * kSlices<kWidth> + static_cast<int>(threadIdx.x);
  const bool inside = column < work.columns;
  const bool writes = me < kColumnTile && first + me < work.columns;
  float mine[kWidth] = {};
  if (inside) {
    add_rows_of<kMasks, T>(work, chunks.begin(chunk) + threadIdx.y, chunks.begin(chunk + 1), column, mine);
  }
  const float sum = add_threads(mine, me);
  if (chunks.chunks == 1) {
    if (writes) work.sums[first + me] = sum;
    return;
  }
  if (writes) work.partials[static_cast<std::int64_t>(chunk) * work.columns + first + me] = sum;
  if (!is_last_block(work.counters + blockIdx.x, static_cast<unsigned>(chunks.chunks))) return;
  float totals[kWidth] = {};
  if (inside) add_partials(work.partials + column, work.columns, chunks.chunks, totals);
  const float total = add_threads(totals, me);
  if (writes) work.sums[first + me] = total;
}

template <class T, int kWidth>
void launch_sum(cudaStream_t stream, const ColumnSum& work) {
  const ColumnChunks chunks = column_chunks(work.rows);
  const Grid grid{
      {static_cast<unsigned>(column_counters(work.columns)), static_cast<unsigned>(chunks.chunks)},
      {kSlices<kWidth>, kRowThreads<kWidth>}};
  if (work.y == nullptr) {
    launch("column sums", stream, grid, column_sum<T, kWidth, false>, work, chunks);
  } else {
    launch("masked column sums", stream, grid, column_sum<T, kWidth, true>, work, chunks);
  }
}

}  // namespace

void add(cudaStream_t stream, float* dst, const float* a, const float* b, std::size_t count, float share,
         float sign) {
  if (count == 0) return;
  const auto n = static_cast<std::int64_t>(count);
  launch("sum", stream, grid_for(n), add_two, dst, a, b, n, share, sign);
}

void add_ranks(cudaStream_t stream, float* dst, const float* gathered, std::size_t count, int ranks) {
  if (count == 0) return;
  launch_tree(stream, dst, gathered, static_cast<std::int64_t>(count), ranks);
}

void sum_columns(cudaStream_t stream, const ColumnSum& work) {
  with_type(work.type, [&]<class T>(T) {
    if (work.columns % kVec8 == 0) {
      launch_sum<T, kVec8>(stream, work);
    } else {
      launch_sum<T, 1>(stream, work);
    }
  });
}

}  // namespace cifar_mpi::cuda
