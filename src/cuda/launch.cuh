#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/grid.cuh"

/// Kernel launches, and kernel code that is not C++: tests replace this file to run kernels on the processor.
namespace cifar_mpi::cuda {

/// Enqueues the kernel and returns; `name` is for the error.
template <class... Params, class... Args>
void launch(const char* name, cudaStream_t stream, const Grid& grid, void (*kernel)(Params...),
            const Args&... args) {
  kernel<<<grid.blocks, grid.threads, grid.shared_bytes, stream>>>(pass<Params>(args)...);
  check_launch(name);
}

/// Shared memory of a block, with the size given at launch.
template <class T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char memory[];
  return reinterpret_cast<T*>(memory);
}

/// Roots and quotients within three units in the last place by one or two instructions, where exact ones take
/// ten or more (PTX ISA, rsqrt.approx, sqrt.approx and div.approx). They treat numbers below 2^-126 as 0.
struct FastMath {
  __device__ float rsqrt(float x) const {
    asm("rsqrt.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
  }
  __device__ float sqrt(float x) const {
    asm("sqrt.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
  }
  /// y of at most 2^126.
  __device__ float divide(float x, float y) const {
    asm("div.approx.ftz.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
    return x;
  }
  __device__ float pow(float x, float y) const { return powf(x, y); }
};

/// Nanoseconds on a clock that all multiprocessors share.
__device__ inline std::uint64_t device_nanoseconds() {
  std::uint64_t now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

}  // namespace cifar_mpi::cuda
