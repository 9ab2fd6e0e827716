#include "cuda/delay_kernel.hpp"
#include "cuda/launch.cuh"

namespace cifar_mpi::cuda {
namespace {

/// So that a clock that stands still holds nothing up for ever; a turn takes 10 ns and more.
constexpr int kMostTurns = 100'000;

__global__ void delay() {
  const std::uint64_t begin = device_nanoseconds();
  for (int turn = 0; turn < kMostTurns && device_nanoseconds() - begin < kDelayNanoseconds; ++turn) {
  }
}

}  // namespace

void enqueue_delay_kernel(cudaStream_t stream) { launch("delay", stream, {1, 1}, delay); }

}  // namespace cifar_mpi::cuda
