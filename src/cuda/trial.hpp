#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <cstddef>

namespace cifar_mpi::cuda {

/// The most scratch memory a library's kernel may ask for.
constexpr std::size_t kMostWorkspace = std::size_t{64} << 20;

/// What planning needs of a device: the libraries, and memory in which each chosen kernel runs once, so that
/// one that does not run is found here and not in a captured step. The operands of all kernels lie on the
/// same bytes.
struct Trial {
  cublasLtHandle_t blas = nullptr;
  cudnnHandle_t dnn = nullptr;
  cudaStream_t stream = nullptr;
  const void* operand = nullptr;  ///< zeros; as large as the largest operand
  void* result = nullptr;         ///< as large as the largest result
  void* workspace = nullptr;      ///< kMostWorkspace bytes
};

}  // namespace cifar_mpi::cuda
