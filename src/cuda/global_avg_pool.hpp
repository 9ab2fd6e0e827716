#pragma once

#include <cuda_runtime_api.h>

#include "cuda/value_type.hpp"

/// The mean of each channel over an image. Both enqueue and return; the limit is memory, each activation is moved
/// once.
namespace cifar_mpi::cuda {

struct GlobalAvgPoolShape {
  int batch = 0;
  int pixels = 0;  ///< of an image
  int channels = 0;
  ValueType type = ValueType::fp32;
};

/// x [batch, pixels, channels], y [batch, channels]. Sums are fp32, in an order that depends on the shape alone.
void global_avg_pool_forward(cudaStream_t stream, const GlobalAvgPoolShape& shape, const void* x, void* y);

void global_avg_pool_backward(cudaStream_t stream, const GlobalAvgPoolShape& shape, const void* grad_y,
                              void* grad_x);

}  // namespace cifar_mpi::cuda
