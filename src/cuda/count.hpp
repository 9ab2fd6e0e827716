#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cifar_mpi/engine/value_counts.hpp"
#include "cuda/value_type.hpp"

/// Observations for people, on the device; only counts are copied back. All enqueue and return.
namespace cifar_mpi::cuda {

/// Contiguous values, or rows of `columns` values at distance `pitch`.
struct CountedTensor {
  const void* values = nullptr;
  std::uint64_t count = 0;
  engine::ValueCounts* counts = nullptr;
  unsigned columns = 0;
  unsigned pitch = 0;

  constexpr std::uint64_t place(std::uint64_t i) const {
    return columns == pitch ? i : i / columns * pitch + i % columns;
  }
};

/// Tensors per launch, limited by the size of its parameters.
constexpr int kMostCounted = 64;
/// Blocks per tensor, and so partial results; no result depends on it.
constexpr unsigned kCountBlocks = 128;

/// Of some of the values of a tensor.
struct ValueEnds {
  float least = 0.0f;
  float most = 0.0f;
  unsigned zeros = 0;
  unsigned finite = 0;
};

/// Counts each tensor, all of one type, as engine::ValueCounts says: the ends, then the number of values at
/// or above each edge, then the sum over the blocks. Values are read twice; 60 instructions per value are the
/// limit, not memory. `ends` has kCountBlocks elements per tensor, `above` kHistogramBuckets times as many.
struct Count {
  ValueType type = ValueType::fp32;
  int tensors = 0;
  CountedTensor items[kMostCounted];
  ValueEnds* ends = nullptr;
  unsigned* above = nullptr;
};
void count_values(cudaStream_t stream, const Count& work);

/// Bytes for `ends` followed by `above`, for so many tensors.
constexpr std::size_t count_scratch_bytes(int tensors) {
  return static_cast<std::size_t>(tensors) * kCountBlocks *
         (sizeof(ValueEnds) + engine::kHistogramBuckets * sizeof(unsigned));
}

/// dst[i] = x[i] as fp32.
void to_fp32(cudaStream_t stream, ValueType type, const void* x, float* dst, std::int64_t count);

}  // namespace cifar_mpi::cuda
