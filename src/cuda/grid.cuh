#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cuda/launch.hpp"
#include "cuda/numbers.cuh"
#include "cuda/value_type.hpp"

/// Launch configuration of kernels.
namespace cifar_mpi::cuda {

struct Grid {
  dim3 blocks;
  dim3 threads;
  std::size_t shared_bytes = 0;  ///< of dynamic_shared, per block
};

/// One thread per element.
inline Grid grid_for(std::int64_t elements) { return {blocks_for(elements), kThreads}; }

/// Converts an argument to the kernel's type: untyped addresses get a type, numbers must fit.
template <class Param, class Arg>
Param pass(const Arg& arg) {
  if constexpr (std::is_pointer_v<Param> && std::is_pointer_v<Arg>) {
    return static_cast<Param>(arg);
  } else {
    return Param{arg};
  }
}

/// Calls `launcher` with a value of the C++ type for `type`.
template <class Launcher>
void with_type(ValueType type, Launcher launcher) {
  if (type == ValueType::bf16) {
    launcher(Bf16{});
  } else {
    launcher(float{});
  }
}

/// True in all threads of the last of the `blocks` that share the counter, which is zero before and after:
/// the results of the others are then visible (read them with __ldcg). All threads of all blocks call it.
__device__ inline bool is_last_block(unsigned* counter, unsigned blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) last = atomicInc(counter, blocks - 1) == blocks - 1;
  __syncthreads();
  __threadfence();
  return last;
}

}  // namespace cifar_mpi::cuda
