#include <cfloat>

#include "cuda/count.hpp"
#include "cuda/launch.cuh"
#include "cuda/numbers.cuh"

namespace cifar_mpi::cuda {
namespace {

using engine::bucket_edge;
using engine::kHistogramBuckets;
using engine::ValueCounts;

constexpr std::uint64_t kLeastPerThread = 8;

/// Blocks with values; the other blocks of the grid return at once.
__device__ unsigned blocks_of(std::uint64_t count) {
  const std::uint64_t wanted = (count + kThreads * kLeastPerThread - 1) / (kThreads * kLeastPerThread);
  return wanted < kCountBlocks ? static_cast<unsigned>(wanted) : kCountBlocks;
}

/// Both comparisons are false for NaN.
__device__ bool is_finite(float value) { return value >= -FLT_MAX && value <= FLT_MAX; }

__device__ void join(ValueEnds& ends, const ValueEnds& other) {
  if (other.finite > 0) {
    if (ends.finite == 0 || other.least < ends.least) ends.least = other.least;
    if (ends.finite == 0 || other.most > ends.most) ends.most = other.most;
  }
  ends.zeros += other.zeros;
  ends.finite += other.finite;
}

/// Of all threads of the block, in all of them.
__device__ ValueEnds join_threads(const ValueEnds& mine) {
  __shared__ ValueEnds all[kThreads];
  const int me = static_cast<int>(threadIdx.x);
  all[me] = mine;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (me < half) join(all[me], all[me + half]);
    __syncthreads();
  }
  const ValueEnds joined = all[0];
  __syncthreads();
  return joined;
}

/// Block (part, tensor): every value once.
template <class T>
__global__ void __launch_bounds__(kThreads) find_ends(const __grid_constant__ Count work) {
  const CountedTensor& tensor = work.items[blockIdx.y];
  const unsigned blocks = blocks_of(tensor.count);
  if (blockIdx.x >= blocks) return;
  const T* const values = static_cast<const T*>(tensor.values);
  ValueEnds mine;
  const std::uint64_t stride = std::uint64_t{kThreads} * blocks;
  for (auto i = static_cast<std::uint64_t>(thread_index()); i < tensor.count; i += stride) {
    const float value = to_float(values[tensor.place(i)]);
    if (!is_finite(value)) continue;
    join(mine, {value, value, value == 0.0f ? 1u : 0u, 1u});
  }
  const ValueEnds ends = join_threads(mine);
  if (threadIdx.x == 0) work.ends[blockIdx.y * kCountBlocks + blockIdx.x] = ends;
}

/// Minimum and maximum over the tensor's blocks, in all threads.
__device__ ValueEnds join_blocks(const Count& work, unsigned blocks) {
  static_assert(kCountBlocks <= kThreads);
  ValueEnds mine;
  if (threadIdx.x < blocks) mine = work.ends[blockIdx.y * kCountBlocks + threadIdx.x];
  return join_threads(mine);
}

/// The counts; each thread keeps its own in registers, and shared memory adds them.
template <class T>
__global__ void __launch_bounds__(kThreads) count_above(const __grid_constant__ Count work) {
  __shared__ float shared_edges[kHistogramBuckets];
  __shared__ unsigned sums[kHistogramBuckets]
                          [kThreads + 1];  // one more, so that columns are in different banks
  const CountedTensor& tensor = work.items[blockIdx.y];
  const unsigned blocks = blocks_of(tensor.count);
  if (blockIdx.x >= blocks) return;
  const int me = static_cast<int>(threadIdx.x);
  const ValueEnds ends = join_blocks(work, blocks);
  if (me < kHistogramBuckets) shared_edges[me] = bucket_edge(ends.least, ends.most, me);
  __syncthreads();
  float edges[kHistogramBuckets];
  unsigned above[kHistogramBuckets];
#pragma unroll
  for (int e = 0; e < kHistogramBuckets; ++e) edges[e] = shared_edges[e], above[e] = 0;
  const T* const values = static_cast<const T*>(tensor.values);
  const std::uint64_t stride = std::uint64_t{kThreads} * blocks;
  for (auto i = static_cast<std::uint64_t>(thread_index()); i < tensor.count; i += stride) {
    const float value = to_float(values[tensor.place(i)]);
    const bool counts = is_finite(value);
#pragma unroll
    for (int e = 0; e < kHistogramBuckets; ++e) above[e] += counts && value >= edges[e] ? 1u : 0u;
  }
#pragma unroll
  for (int e = 0; e < kHistogramBuckets; ++e) sums[e][me] = above[e];
  __syncthreads();
  if (me >= kHistogramBuckets) return;
  unsigned sum = 0;
  for (int t = 0; t < kThreads; ++t) sum += sums[me][t];
  work.above[(blockIdx.y * kCountBlocks + blockIdx.x) * kHistogramBuckets + me] = sum;
}

/// One block per tensor sums the results of the others.
__global__ void __launch_bounds__(kThreads) finish_counts(const __grid_constant__ Count work) {
  __shared__ std::uint64_t totals[kHistogramBuckets + 1];
  const CountedTensor& tensor = work.items[blockIdx.y];
  const unsigned blocks = blocks_of(tensor.count);
  const int me = static_cast<int>(threadIdx.x);
  const ValueEnds ends = join_blocks(work, blocks);
  if (me <= kHistogramBuckets) {
    std::uint64_t total = 0;
    for (unsigned block = 0; me < kHistogramBuckets && block < blocks; ++block) {
      total += work.above[(blockIdx.y * kCountBlocks + block) * kHistogramBuckets + me];
    }
    totals[me] = total;
  }
  __syncthreads();
  ValueCounts& counts = *tensor.counts;
  const bool any = ends.finite > 0;
  if (me <= kHistogramBuckets) counts.edges[me] = any ? bucket_edge(ends.least, ends.most, me) : 0.0f;
  if (me < kHistogramBuckets) counts.buckets[me] = any ? totals[me] - totals[me + 1] : 0;
  if (me != 0) return;
  counts.unused = 0;
  counts.zeros = ends.zeros;
  counts.finite = ends.finite;
  counts.not_finite = tensor.count - ends.finite;
}

template <class T>
__global__ void copy_as_fp32(const T* x, float* dst, std::int64_t count) {
  const std::int64_t i = thread_index();
  if (i < count) dst[i] = to_float(x[i]);
}

}  // namespace

void count_values(cudaStream_t stream, const Count& work) {
  const auto tensors = static_cast<unsigned>(work.tensors);
  const Grid grid{{kCountBlocks, tensors}, kThreads};
  with_type(work.type, [&]<class T>(T) {
    launch("ends of values", stream, grid, find_ends<T>, work);
    launch("count of values", stream, grid, count_above<T>, work);
  });
  launch("sum of counts", stream, {{1, tensors}, kThreads}, finish_counts, work);
}

void to_fp32(cudaStream_t stream, ValueType type, const void* x, float* dst, std::int64_t count) {
  with_type(type, [&]<class T>(T) {
    launch("keep images", stream, grid_for(count), copy_as_fp32<T>, x, dst, count);
  });
}

}  // namespace cifar_mpi::cuda
