#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/lrn_pool_math.hpp"
#include "cuda/value_type.hpp"

/// Local response normalization over the channels of a pixel, alone or with the max-pooling before or after it in one
/// kernel per direction. All enqueue and return.
namespace cifar_mpi::cuda {

struct LrnShape {
  LrnRule rule;
  std::int64_t pixels = 0;
  int channels = 0;
  ValueType type = ValueType::fp32;
};

/// x and y [pixels, channels].
void lrn_forward(cudaStream_t stream, const LrnShape& shape, const Activation& activation, const void* x,
                 void* y);

/// With a ReLU, grad_x is zero where the output of the ReLU is not positive.
void lrn_backward(cudaStream_t stream, const LrnShape& shape, const Activation& activation, const void* x,
                  const void* grad_y, void* grad_x);

/// The values between the pooling and the normalization are not stored, but rounded to the type as if they were.
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
