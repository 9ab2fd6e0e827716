#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

#include "cuda/dnn_handles.hpp"

namespace cifar_mpi::cuda {

/// The most scratch memory that a matrix product may ask for, and a convolution: a deterministic weight
/// gradient of thousands of images wants hundreds of MiB, and what a library takes instead can be ten times
/// slower.
constexpr std::size_t kMostProductWorkspace = std::size_t{64} << 20;
constexpr std::size_t kMostConvWorkspace = std::size_t{512} << 20;

/// What planning needs of a device: the libraries, and memory in which each chosen kernel runs once, so that
/// one that does not run is found here and not in a captured step. The operands of all kernels lie on the
/// same bytes.
struct Trial {
  cublasLtHandle_t blas = nullptr;
  DnnHandles* dnn = nullptr;
  cudaStream_t stream = nullptr;
  const void* operand = nullptr;  ///< zeros; as large as the largest operand
  void* result = nullptr;         ///< as large as the largest result
  const void* nans = nullptr;     ///< nothing but NaN, in each type
  std::size_t nan_bytes = 0;
  /// Copies from the device, whose stream is done, to the host.
  std::function<void(void* dst, const void* src, std::size_t bytes)> read;
  /// Memory of so many bytes, until it is asked for more; null where the device has not so much left.
  std::function<void*(std::size_t bytes)> workspace;
};

}  // namespace cifar_mpi::cuda
