#pragma once

#include <cuda_runtime_api.h>
#include <math.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda/stand_in/block.hpp"
#include "cuda/stand_in/gpu.hpp"

/// Takes the place of the backend's own launch.cuh when kernels are compiled for the processor: what in them
/// is no C++, and how they are started.

#undef __shared__
#undef __launch_bounds__
#undef __grid_constant__
#define __shared__ static  // one block runs at a time
#define __launch_bounds__(...)
#define __grid_constant__

namespace cifar_mpi::cuda {

using stand_in::blockDim;
using stand_in::blockIdx;
using stand_in::gridDim;
using stand_in::threadIdx;

/// The line that calls it is compared between the threads of a block.
inline void __syncthreads(int line = __builtin_LINE()) { stand_in::barrier(line); }
inline void __threadfence() {}

template <class T>
T __ldcg(const T* place) {
  return *place;
}
template <class T>
T atomicAdd(T* place, T value) {
  const T old = *place;
  *place += value;
  return old;
}
inline unsigned atomicInc(unsigned* place, unsigned last) {
  const unsigned old = *place;
  *place = old >= last ? 0 : old + 1;
  return old;
}

}  // namespace cifar_mpi::cuda

#include "cuda/grid.cuh"

namespace cifar_mpi::cuda {

template <class... Params, class... Args>
void launch(const char* name, cudaStream_t stream, const Grid& grid, void (*kernel)(Params...),
            const Args&... args) {
  // in two parts, so that those of kernels that may run at once mix
  const auto order = std::make_shared<std::vector<std::uint64_t>>();
  for (const bool first : {true, false}) {
    stand_in::start(stream, name, [=, ... params = pass<Params>(args)] {
      if (first) *order = stand_in::draw_blocks(grid.blocks);
      stand_in::run_blocks(name, grid.blocks, grid.threads, grid.shared_bytes, *order,
                           first ? stand_in::chance(order->size() + 1) : order->size(),
                           [&] { kernel(params...); });
    });
  }
  check_launch(name);
}

template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(stand_in::shared_memory());
}

struct FastMath {
  float rsqrt(float x) const { return 1.0f / ::sqrtf(x); }
  float sqrt(float x) const { return ::sqrtf(x); }
  float divide(float x, float y) const { return x / y; }
  float pow(float x, float y) const { return ::powf(x, y); }
};

inline std::uint64_t device_nanoseconds() { return stand_in::nanoseconds(); }

}  // namespace cifar_mpi::cuda
