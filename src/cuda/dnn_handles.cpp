#include "cuda/dnn_handles.hpp"

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::cuda {

cudnnHandle_t DnnHandles::of(cudaStream_t stream) {
  if (const auto known = handles_.find(stream); known != handles_.end()) return known->second.get();
  if (!why_.empty()) return nullptr;
  cudnnHandle_t made = nullptr;
  cudnnStatus_t status = cudnnCreate(&made);
  if (status == CUDNN_STATUS_SUCCESS) {
    const auto place = handles_.emplace(stream, Owned<cudnnHandle_t>(made)).first;
    status = cudnnSetStream(made, stream);
    if (status == CUDNN_STATUS_SUCCESS) return place->second.get();
    handles_.erase(place);
  }
  static_cast<void>(cudaGetLastError());
  why_ = concat("cuDNN cannot be opened (", cudnnGetErrorString(status), ")");
  return nullptr;
}

void DnnHandles::abandon() {
  for (auto& [stream, handle] : handles_) static_cast<void>(handle.release());
}

}  // namespace cifar_mpi::cuda
