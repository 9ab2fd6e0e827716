#pragma once

#include <cstdint>

namespace cifar_mpi::cuda {

/// Throws Error{device} when the kernel before it could not be started. Kernels include this and no library's
/// header: they compile three times.
void check_launch(const char* kernel);

/// Threads of a block of the kernels that do one element per thread.
constexpr int kThreads = 256;

/// Blocks for one thread per element.
constexpr unsigned blocks_for(std::int64_t elements) {
  return static_cast<unsigned>((elements + kThreads - 1) / kThreads);
}

}  // namespace cifar_mpi::cuda
