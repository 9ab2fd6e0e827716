#pragma once

#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <map>
#include <string>

#include "cuda/handles.hpp"

namespace cifar_mpi::cuda {

/// cuDNN's handles, one for each stream: what a handle keeps on the device belongs to one stream at a time.
class DnnHandles {
 public:
  /// The stream's, made at the first call; null where cuDNN cannot be opened.
  cudnnHandle_t of(cudaStream_t stream);
  /// Why it cannot, in words; empty while it can.
  const std::string& why() const { return why_; }
  /// Gives nothing back: see Device's destructor.
  void abandon();

 private:
  std::map<cudaStream_t, Owned<cudnnHandle_t>> handles_;
  std::string why_;
};

}  // namespace cifar_mpi::cuda
