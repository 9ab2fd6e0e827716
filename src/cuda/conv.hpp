#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/conv_math.hpp"
#include "cuda/value_type.hpp"

/// Helpers of convolutions: windows as rows of a matrix, and conversions between weight orders. All enqueue
/// and return.
namespace cifar_mpi::cuda {

/// patches[row, k] as Im2colShape says; image and patches of `type`.
void im2col(cudaStream_t stream, const Im2colShape& shape, ValueType type, const void* image, void* patches);

/// dst[i] = src[i] as bf16.
void round_to_bf16(cudaStream_t stream, const float* src, void* dst, std::int64_t count);

/// dst[column, row] of `type` from src[row, column].
void transpose_weights(cudaStream_t stream, const float* src, void* dst, ValueType type, int rows,
                       int columns);

/// dst[row, column] from src[column, row] of `type`.
void transpose_gradient(cudaStream_t stream, const void* src, ValueType type, float* dst, int rows,
                        int columns);

/// dst[i] = src[i], and src[i] = 0.
void move_values(cudaStream_t stream, float* src, float* dst, int count);

/// Weights [kernel, kernel, in, out] as [kernel, kernel, out, in] rotated by 180 degrees, followed by zeros up
/// to `row` rows of `in` values.
struct RotatedWeights {
  int kernel = 0;
  int in = 0;
  int out = 0;
  int row = 0;
};
void rotate_weights(cudaStream_t stream, const RotatedWeights& shape, const float* src, void* dst,
                    ValueType type);

}  // namespace cifar_mpi::cuda
