#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/lrn_pool_math.hpp"
#include "cuda/value_type.hpp"

/// A local response normalization and the max-pooling before or after it in one kernel per direction. The values between
/// them are not stored, but rounded to the type as if they were. All enqueue and return.
namespace cifar_mpi::cuda {

struct LrnPoolShape {
  PoolPlace place;  ///< with the rule: fits_lrn_pool
  LrnRule rule;
  ValueType type = ValueType::fp32;
  Activation activation;  ///< how the first of the two reads its input; with a ReLU its backward pass masks
};

/// y = the normalization of the pooled x. Also writes the pooled values and the argmax, each unless null.
void pool_lrn_forward(cudaStream_t stream, const LrnPoolShape& shape, const void* x, void* pooled,
                      std::uint8_t* argmax, void* y);
void pool_lrn_backward(cudaStream_t stream, const LrnPoolShape& shape, const void* pooled,
                       const std::uint8_t* argmax, const void* grad_y, void* grad_x);

/// y = the pooling of the normalized x. Also writes the argmax, unless null.
void lrn_pool_forward(cudaStream_t stream, const LrnPoolShape& shape, const void* x, std::uint8_t* argmax,
                      void* y);
void lrn_pool_backward(cudaStream_t stream, const LrnPoolShape& shape, const void* x,
                       const std::uint8_t* argmax, const void* grad_y, void* grad_x);

}  // namespace cifar_mpi::cuda
