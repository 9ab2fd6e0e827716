#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cifar_mpi::cuda {

/// Longer than a host takes to enqueue the few kernels of a task (3 to 6 µs each).
constexpr std::uint64_t kDelayNanoseconds = 25'000;

/// Keeps the stream busy for about kDelayNanoseconds. Between two events on an idle stream lies also the time
/// that the host takes to enqueue what is to be measured; with this in front of the first, the device reaches
/// them when all of it is there, and what lies between them is the device's alone. Enqueues and returns.
void enqueue_delay_kernel(cudaStream_t stream);

}  // namespace cifar_mpi::cuda
