#include "cuda/last_block.cuh"
#include "cuda/launch.cuh"
#include "cuda/sum.hpp"

namespace cifar_mpi::cuda {
namespace {

constexpr int kRowThreads = 8;

__global__ void add_two(float* dst, const float* a, const float* b, std::int64_t count) {
  const std::int64_t i = thread_index();
  if (i < count) dst[i] = b == nullptr ? a[i] : a[i] + b[i];
}

__global__ void add_tree(float* __restrict__ dst, const float* __restrict__ gathered, std::int64_t count,
                         int ranks) {
  const std::int64_t i = thread_index();
  if (i < count) dst[i] = tree_sum(ranks, [&](int rank) { return gathered[rank * count + i]; });
}

/// The threads of a block that share a column add up what each has, in a fixed order.
__device__ float add_rows(float mine) {
  __shared__ float values[kRowThreads][kColumnTile];
  values[threadIdx.y][threadIdx.x] = mine;
  __syncthreads();
  float sum = 0.0f;
  if (threadIdx.y == 0) {
    for (int i = 0; i < kRowThreads; ++i) sum += values[i][threadIdx.x];
  }
  __syncthreads();
  return sum;
}

/// Block (tile of columns, chunk of rows). Each chunk is summed by its block; the last block of a tile adds
/// the chunks in order, so the result does not depend on which that is. Reads every value once.
template <class T>
__global__ void column_sum(ColumnSum work, ColumnChunks chunks) {
  const int column = static_cast<int>(blockIdx.x) * kColumnTile + static_cast<int>(threadIdx.x);
  const int chunk = static_cast<int>(blockIdx.y);
  const bool inside = column < work.columns;
  T* const grad = static_cast<T*>(work.grad);
  const T* const y = static_cast<const T*>(work.y);
  float sum = 0.0f;
  for (std::int64_t row = chunks.begin(chunk) + threadIdx.y; inside && row < chunks.begin(chunk + 1);
       row += kRowThreads) {
    const std::int64_t i = row * work.columns + column;
    if (y != nullptr && !(to_float(y[i]) > 0.0f)) {
      grad[i] = from_float<T>(0.0f);
    } else {
      sum += to_float(grad[i]);
    }
  }
  sum = add_rows(sum);
  const bool writes = inside && threadIdx.y == 0;
  if (chunks.chunks == 1) {
    if (writes) work.sums[column] = sum;
    return;
  }
  if (writes) work.partials[static_cast<std::int64_t>(chunk) * work.columns + column] = sum;
  if (!is_last_block(work.counters + blockIdx.x, static_cast<unsigned>(chunks.chunks))) return;
  float total = 0.0f;
  for (int i = static_cast<int>(threadIdx.y); inside && i < chunks.chunks; i += kRowThreads) {
    total += __ldcg(work.partials + static_cast<std::int64_t>(i) * work.columns + column);
  }
  total = add_rows(total);
  if (writes) work.sums[column] = total;
}

}  // namespace

void add(cudaStream_t stream, float* dst, const float* a, const float* b, std::size_t count) {
  if (count == 0) return;
  const auto n = static_cast<std::int64_t>(count);
  launch("sum", stream, grid_for(n), add_two, dst, a, b, n);
}

void add_ranks(cudaStream_t stream, float* dst, const float* gathered, std::size_t count, int ranks) {
  if (count == 0) return;
  const auto n = static_cast<std::int64_t>(count);
  launch("sum over ranks", stream, grid_for(n), add_tree, dst, gathered, n, ranks);
}

void sum_columns(cudaStream_t stream, const ColumnSum& work) {
  const ColumnChunks chunks = column_chunks(work.rows);
  const dim3 blocks(static_cast<unsigned>(column_counters(work.columns)),
                    static_cast<unsigned>(chunks.chunks));
  const Grid grid{blocks, {kColumnTile, kRowThreads}};
  with_type(work.type, [&]<class T>(T) { launch("column sums", stream, grid, column_sum<T>, work, chunks); });
}

}  // namespace cifar_mpi::cuda
