#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "cuda/value_type.hpp"

/// Values of either type as floats, in kernels.
namespace cifar_mpi::cuda {

using Bf16 = __nv_bfloat16;

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(Bf16 value) { return __bfloat162float(value); }

template <class T>
__device__ T from_float(float value);
template <>
__device__ inline float from_float<float>(float value) {
  return value;
}
template <>
__device__ inline Bf16 from_float<Bf16>(float value) {
  return __float2bfloat16_rn(value);
}

/// x of that channel as a T, read as `activation` says.
template <class T>
__device__ float activated(const Activation& activation, float x, int channel) {
  if (!activation.relu) return x;
  if (activation.bias != nullptr) x = to_float(from_float<T>(x + activation.bias[channel]));
  return rectified(x);
}

/// This thread's number in the grid.
__device__ inline std::int64_t thread_index() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

/// What the formulas that host and device share need of a mathematics library.
struct DeviceMath {
  __device__ float sqrt(float x) const { return sqrtf(x); }
  __device__ float pow(float x, float y) const { return powf(x, y); }
  __device__ double pow(double x, double y) const { return ::pow(x, y); }
  __device__ double cos(double x) const { return ::cos(x); }
  __device__ float exp(float x) const { return expf(x); }
  __device__ float erfc(float x) const { return erfcf(x); }
  __device__ float log1p(float x) const { return log1pf(x); }
};

}  // namespace cifar_mpi::cuda
