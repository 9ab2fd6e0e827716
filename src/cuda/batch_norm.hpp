#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/batch_norm_math.hpp"
#include "cuda/sum.hpp"
#include "cuda/value_type.hpp"

/// Batch normalization of activations [rows, channels], where rows are the pixels of the batch, optionally
/// with the ReLU after it. Arithmetic is fp32. All functions enqueue and return.
///
/// All kernels have one grid: a block takes a tile of channels and a chunk of rows (column_tile.cuh,
/// column_chunks), so data of a channel is read once. Relative to the bytes of one activation the forward
/// pass moves 3 (2 in evaluation) and the backward pass 5, less what stays in the cache from the first kernel
/// to the second. The limit is memory.
///
///   bits   the same in every run: a chunk's sums are added in a fixed order, the chunks' by the last block
namespace cifar_mpi::cuda {

struct BatchNormWork {
  ValueType type = ValueType::fp32;
  std::int64_t rows = 0;
  int channels = 0;
  float epsilon = 0.0f;
  bool relu = false;
  const float* scale = nullptr;  ///< [channels], as biases; null: 1
  const float* biases = nullptr;
  float* moments = nullptr;      ///< [2, channels]: mean and 1/√(variance + epsilon) of the batch
  float* partials = nullptr;     ///< partial_floats(); scratch, null in evaluation
  unsigned* counters = nullptr;  ///< column_counters(channels) words, zero before and after

  std::size_t partial_floats() const {
    return 2 * static_cast<std::size_t>(column_chunks(rows).chunks + 1) * static_cast<std::size_t>(channels);
  }
};

/// y = scale · (x − mean) · rstd + bias with the moments of this batch, which are stored in `moments`; share
/// · mean and share · (biased) variance go to `mean` and `variance`. A chunk's moments are relative to its
/// first row, and merged relative to the first chunk's mean.
void batch_norm_forward(cudaStream_t stream, const BatchNormWork& work, const void* x, void* y, float* mean,
                        float* variance, float share);

/// With statistics of all ranks: [2, channels] of engine::RankSums, and the running mean, which all have in common.
struct BatchNormSums {
  float* memory = nullptr;
  int ranks = 1;
  const float* around = nullptr;
};
/// The forward pass in two parts, with the sum over the ranks between them. The terms are those of seen_from, each
/// rank's batch counting once.
void batch_norm_rank_moments(cudaStream_t stream, const BatchNormWork& work, const void* x,
                             const float* around, float* sums);
void batch_norm_forward_of_ranks(cudaStream_t stream, const BatchNormWork& work, const BatchNormSums& sums,
                                 const void* x, void* y, float* mean, float* variance, float share);

/// The same with given statistics; `moments` are unchanged.
void batch_norm_inference(cudaStream_t stream, const BatchNormWork& work, const void* x, void* y,
                          const float* mean, const float* variance);

/// The gradients of batch_norm_math.hpp, with the moments of the forward pass. `grad_scale` and `grad_biases`
/// may be null, and so may `grad_x` if it is not needed.
void batch_norm_backward(cudaStream_t stream, const BatchNormWork& work, const void* x, const void* grad_y,
                         float* grad_scale, float* grad_biases, void* grad_x);

/// The backward pass in two parts: `sums` are GradSums, of this rank, then of all.
void batch_norm_gradient_sums(cudaStream_t stream, const BatchNormWork& work, const void* x,
                              const void* grad_y, float* grad_scale, float* grad_biases, float* sums);
void batch_norm_backward_of_ranks(cudaStream_t stream, const BatchNormWork& work, const BatchNormSums& sums,
                                  const void* x, const void* grad_y, void* grad_x);

}  // namespace cifar_mpi::cuda
