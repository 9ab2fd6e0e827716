#pragma once

#include <cstdint>

namespace cifar_mpi::cuda {

/// Throws Error{device} if the preceding kernel could not be started. Kernels include this file and no
/// library header, because they are compiled three times.
void check_launch(const char* kernel);

/// Threads per block of kernels with one element per thread.
constexpr int kThreads = 256;

/// Blocks for one thread per element.
constexpr unsigned blocks_for(std::int64_t elements) {
  return static_cast<unsigned>((elements + kThreads - 1) / kThreads);
}

}  // namespace cifar_mpi::cuda
