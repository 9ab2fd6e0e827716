#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/lrn_pool_math.hpp"
#include "cuda/value_type.hpp"

/// A local response normalization and the max-pooling before or behind it in one kernel each way: what lies
/// between them is neither written nor read, but rounded to the type as if it were. All enqueue and return.
namespace cifar_mpi::cuda {

struct LrnPoolShape {
  PoolPlace place;  ///< with the rule: fits_lrn_pool
  LrnRule rule;
  ValueType type = ValueType::fp32;
  Activation activation;  ///< how the first of the two reads its input; with a ReLU its backward pass masks
};

/// Pools x, then normalizes: y. Also leaves the pooled values, where not null, and the argmax, where not null.
void pool_lrn_forward(cudaStream_t stream, const LrnPoolShape& shape, const void* x, void* pooled,
                      std::uint8_t* argmax, void* y);
void pool_lrn_backward(cudaStream_t stream, const LrnPoolShape& shape, const void* pooled,
                       const std::uint8_t* argmax, const void* grad_y, void* grad_x);

/// Normalizes x, then pools: y. Also leaves the argmax, where not null.
void lrn_pool_forward(cudaStream_t stream, const LrnPoolShape& shape, const void* x, std::uint8_t* argmax,
                      void* y);
void lrn_pool_backward(cudaStream_t stream, const LrnPoolShape& shape, const void* x,
                       const std::uint8_t* argmax, const void* grad_y, void* grad_x);

}  // namespace cifar_mpi::cuda
