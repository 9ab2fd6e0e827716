#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/pointwise_math.hpp"
#include "cuda/value_type.hpp"

/// Elementwise ReLUs that no other kernel includes, biases and sums. All enqueue and return; NaN stays NaN.
namespace cifar_mpi::cuda {

/// y[i] = max(x[i], 0); y may be x.
void relu_forward(cudaStream_t stream, ValueType type, const void* x, void* y, std::int64_t count);

/// masked[i] = grad[i] where y[i], the ReLU's output, is positive, else 0; masked may be grad.
void relu_mask(cudaStream_t stream, ValueType type, const void* y, const void* grad, void* masked,
               std::int64_t count);

/// sum[i] = a[i] + b[i], added in fp32; sum may be a or b.
void add_values(cudaStream_t stream, ValueType type, const void* a, const void* b, void* sum,
                std::int64_t count);

/// y[row, column] += bias[column], then max(·, 0) if asked for; in place.
void add_bias(cudaStream_t stream, ValueType type, void* y, const float* bias, std::int64_t rows, int columns,
              bool relu);

// Functions of single values.

struct PointwiseShape {
  model::Pointwise layer;
  std::int64_t count = 0;
  ValueType type = ValueType::fp32;
};

/// y[i] = f(x[i]).
void pointwise_forward(cudaStream_t stream, const PointwiseShape& shape, const void* x, void* y);

/// grad_x[i] = f'(x[i]) · grad_y[i].
void pointwise_backward(cudaStream_t stream, const PointwiseShape& shape, const void* x, const void* grad_y,
                        void* grad_x);

}  // namespace cifar_mpi::cuda
