#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <cstddef>
#include <functional>
#include <map>
#include <string>

#include "cuda/handles.hpp"

namespace cifar_mpi::cuda {

/// The most scratch memory that a matrix product or a convolution may request: a deterministic weight
/// gradient of thousands of images needs hundreds of MiB, and a library's alternative can be ten times
/// slower.
constexpr std::size_t kMostProductWorkspace = std::size_t{64} << 20;
constexpr std::size_t kMostConvWorkspace = std::size_t{512} << 20;

/// cuDNN's handles, one per stream, because a handle's device memory belongs to one stream at a time.
class DnnHandles {
 public:
  /// The stream's handle, created at the first call; null if cuDNN cannot be opened.
  cudnnHandle_t of(cudaStream_t stream);
  /// Why cuDNN cannot be opened; empty otherwise.
  const std::string& why() const { return why_; }
  /// Frees nothing: see Device's destructor.
  void abandon();

 private:
  std::map<cudaStream_t, Owned<cudnnHandle_t>> handles_;
  std::string why_;
};

/// The services of a device for planning: the libraries, and memory in which each chosen kernel runs once, so
/// that a broken one is found here and not in a captured step. The operands of all kernels share the same
/// bytes.
struct Trial {
  cublasLtHandle_t blas = nullptr;
  DnnHandles* dnn = nullptr;
  cudaStream_t stream = nullptr;
  const void* operand = nullptr;  ///< zeros; as large as the largest operand
  void* result = nullptr;         ///< as large as the largest result
  const void* nans = nullptr;     ///< NaN only, in each type
  std::size_t nan_bytes = 0;
  /// Copies from the device to the host; the device's stream is idle.
  std::function<void(void* dst, const void* src, std::size_t bytes)> read;
  /// Memory of so many bytes, until the next request; null if the device lacks it.
  std::function<void*(std::size_t bytes)> workspace;
};

}  // namespace cifar_mpi::cuda
