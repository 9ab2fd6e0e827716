#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cuda/sum_math.hpp"
#include "cuda/value_type.hpp"

/// Sums in a fixed order. All enqueue and return.
namespace cifar_mpi::cuda {

/// See engine::SumBinding.
void add(cudaStream_t stream, float* dst, const float* a, const float* b, std::size_t count, float share,
         float sign);

/// dst[i] = tree_sum over rank r of gathered[r · count + i].
void add_ranks(cudaStream_t stream, float* dst, const float* gathered, std::size_t count, int ranks);

/// sums[column] = Σ over the rows of grad[row, column]: the bias gradient. With `y`, grad is first zeroed in
/// place where y is not positive: the mask of the ReLU after the bias.
struct ColumnSum {
  ValueType type = ValueType::fp32;
  std::int64_t rows = 0;
  int columns = 0;
  void* grad = nullptr;
  const void* y = nullptr;
  float* sums = nullptr;
  float* partials = nullptr;     ///< column_chunks(rows).chunks · columns floats
  unsigned* counters = nullptr;  ///< column_counters(columns) words, zero before and after
};
void sum_columns(cudaStream_t stream, const ColumnSum& work);

/// Columns that one block sums.
constexpr int kColumnTile = 64;
constexpr int column_counters(int columns) { return (columns + kColumnTile - 1) / kColumnTile; }

}  // namespace cifar_mpi::cuda
