#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/value_type.hpp"

/// ReLUs that no other kernel takes in. All enqueue and return; a NaN stays one.
namespace cifar_mpi::cuda {

/// y[i] = max(x[i], 0).
void relu_forward(cudaStream_t stream, ValueType type, const void* x, void* y, std::int64_t count);

/// Zeroes grad[i] where y[i], the ReLU's output, is not positive.
void relu_mask(cudaStream_t stream, ValueType type, const void* y, void* grad, std::int64_t count);

/// y[row, column] += bias[column], then max(·, 0) if asked for; in place.
void add_bias(cudaStream_t stream, ValueType type, void* y, const float* bias, std::int64_t rows, int columns,
              bool relu);

}  // namespace cifar_mpi::cuda
