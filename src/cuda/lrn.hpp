#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/lrn_math.hpp"
#include "cuda/value_type.hpp"

/// Local response normalization over the channels of a pixel. Both enqueue and return.
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

}  // namespace cifar_mpi::cuda
