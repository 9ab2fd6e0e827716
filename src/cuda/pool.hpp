#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/pool_math.hpp"
#include "cuda/value_type.hpp"

/// Max-pooling of NHWC images. Both enqueue and return.
namespace cifar_mpi::cuda {

/// y = the maximum of each window; argmax, unless null, receives its place in the window (pool_choose, through_relu).
void pool_forward(cudaStream_t stream, const PoolPlace& place, ValueType type, const Activation& activation,
                  const void* x, void* y, std::uint8_t* argmax);

/// grad_x[place] = the sum of grad_y over the windows whose maximum was there. It is gathered: no two threads write the
/// same place.
void pool_backward(cudaStream_t stream, const PoolPlace& place, ValueType type, const std::uint8_t* argmax,
                   const void* grad_y, void* grad_x);

/// The mean of each channel over an image; each activation moves once.
struct GlobalAvgPoolShape {
  int batch = 0;
  int pixels = 0;  ///< of an image
  int channels = 0;
  ValueType type = ValueType::fp32;
};

/// x [batch, pixels, channels], y [batch, channels]. Sums are fp32, in an order that depends only on the shape.
void global_avg_pool_forward(cudaStream_t stream, const GlobalAvgPoolShape& shape, const void* x, void* y);

void global_avg_pool_backward(cudaStream_t stream, const GlobalAvgPoolShape& shape, const void* grad_y,
                              void* grad_x);

}  // namespace cifar_mpi::cuda
