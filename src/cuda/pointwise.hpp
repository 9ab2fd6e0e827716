#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/pointwise_math.hpp"
#include "cuda/value_type.hpp"

/// Functions of single values. Both enqueue and return; NaN stays NaN.
namespace cifar_mpi::cuda {

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
