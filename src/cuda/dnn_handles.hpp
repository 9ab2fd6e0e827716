#pragma once

#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <map>
#include <string>

#include "cuda/handles.hpp"

namespace cifar_mpi::cuda {

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

}  // namespace cifar_mpi::cuda
