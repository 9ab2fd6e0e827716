#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/batch_norm_math.hpp"
#include "cuda/sum.hpp"
#include "cuda/value_type.hpp"

/// Batch normalization of activations [rows, channels], rows being the pixels of the batch, with the ReLU behind it
/// where there is one. Arithmetic is fp32. All enqueue and return.
///
/// All kernels have one grid: blocks take a tile of channels and a chunk of rows (column_tile.cuh, column_chunks), so
/// channels read once what belongs to them. In bytes of one activation the forward pass moves 3 (2 in evaluation) and
/// the backward pass 5, less what stays in the cache from the first kernel to the second. The limit is memory.
///
///   bits   the same in every run: a chunk's sums are added in a fixed order, the chunks' by the last block
namespace cifar_mpi::cuda {

struct BatchNormWork {
  ValueType type = ValueType::fp32;
  std::int64_t rows = 0;
  int channels = 0;
  float epsilon = 0.0f;
  bool relu = false;
  const float* scale = nullptr;  ///< [channels], as biases
  const float* biases = nullptr;
  float* moments = nullptr;      ///< [2, channels]: mean and 1/√(variance + epsilon) of the batch
  float* partials = nullptr;     ///< partial_floats(); scratch, null in evaluation
  unsigned* counters = nullptr;  ///< column_counters(channels) words, zero before and after

  std::size_t partial_floats() const {
    return 2 * static_cast<std::size_t>(column_chunks(rows).chunks + 1) * static_cast<std::size_t>(channels);
  }
};

/// y = scale · (x − mean) · rstd + bias with the moments of this batch, which it leaves in `moments`; and share · mean
/// and share · (biased) variance at `mean` and `variance`. A chunk's moments are taken around its first row, and
/// merged around the first chunk's mean.
void batch_norm_forward(cudaStream_t stream, const BatchNormWork& work, const void* x, void* y, float* mean,
                        float* variance, float share);

/// The same with given statistics; `moments` are not touched.
void batch_norm_inference(cudaStream_t stream, const BatchNormWork& work, const void* x, void* y,
                          const float* mean, const float* variance);

/// The gradients as batch_norm_math.hpp has them, with the moments as the forward pass left them. `grad_scale` and
/// `grad_biases` may be null, and `grad_x`, when it is not wanted.
void batch_norm_backward(cudaStream_t stream, const BatchNormWork& work, const void* x, const void* grad_y,
                         float* grad_scale, float* grad_biases, void* grad_x);

}  // namespace cifar_mpi::cuda
