#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/grid.cuh"

/// How kernels are started, and what in them is no C++: tests replace this file to run them on the processor.
namespace cifar_mpi::cuda {

/// Enqueues the kernel and returns; `name` is for the error.
template <class... Params, class... Args>
void launch(const char* name, cudaStream_t stream, const Grid& grid, void (*kernel)(Params...),
            const Args&... args) {
  kernel<<<grid.blocks, grid.threads, grid.shared_bytes, stream>>>(pass<Params>(args)...);
  check_launch(name);
}

/// The memory that all threads of a block share and the launch measured.
template <class T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char memory[];
  return reinterpret_cast<T*>(memory);
}

/// Roots and quotients within three units in the last place by one or two instructions, where the exact ones
/// take ten and more (PTX ISA, rsqrt.approx, sqrt.approx and div.approx). They take numbers below 2^-126 for 0.
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
