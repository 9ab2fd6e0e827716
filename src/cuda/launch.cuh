#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cuda/launch.hpp"
#include "cuda/numbers.cuh"
#include "cuda/value_type.hpp"

/// How kernels are started, and what in them is no C++: tests replace this file to run them on the processor.
namespace cifar_mpi::cuda {

struct Grid {
  dim3 blocks;
  dim3 threads;
  std::size_t shared_bytes = 0;  ///< of dynamic_shared, per block
};

/// One thread per element.
inline Grid grid_for(std::int64_t elements) { return {blocks_for(elements), kThreads}; }

/// An argument as the kernel wants it: an address without a type becomes one with, numbers must fit.
template <class Param, class Arg>
Param pass(const Arg& arg) {
  if constexpr (std::is_pointer_v<Param> && std::is_pointer_v<Arg>) {
    return static_cast<Param>(arg);
  } else {
    return Param{arg};
  }
}

/// Enqueues the kernel and returns; `name` is for the error.
template <class... Params, class... Args>
void launch(const char* name, cudaStream_t stream, const Grid& grid, void (*kernel)(Params...),
            const Args&... args) {
  kernel<<<grid.blocks, grid.threads, grid.shared_bytes, stream>>>(pass<Params>(args)...);
  check_launch(name);
}

/// Calls `launcher` with a value of the C++ type that stands for `type`.
template <class Launcher>
void with_type(ValueType type, Launcher launcher) {
  if (type == ValueType::bf16) {
    launcher(Bf16{});
  } else {
    launcher(float{});
  }
}

/// The memory that all threads of a block share and the launch measured.
template <class T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char memory[];
  return reinterpret_cast<T*>(memory);
}

/// Nanoseconds on a clock that all multiprocessors share.
__device__ inline std::uint64_t device_nanoseconds() {
  std::uint64_t now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

}  // namespace cifar_mpi::cuda
