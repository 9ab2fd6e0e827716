#pragma once

#include "cuda/launch.cuh"

namespace cifar_mpi::cuda {

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
