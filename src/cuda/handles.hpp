#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <nccl.h>

#include "cifar_mpi/base/handle.hpp"

/// Error checks for all calls of the CUDA runtime, cuDNN, cuBLASLt and NCCL, and owners of their objects.
/// Destructors ignore errors: a lost device has been reported before.
namespace cifar_mpi::cuda {

/// Throw Error{device}, or for NCCL Error{comm} unless the call itself or this GPU is at fault, with the
/// purpose, the library's message and the place. `purpose` completes "CUDA failed while …", for example
/// "starting a kernel".
void check(cudaError_t status, const char* purpose, const char* file = __builtin_FILE(),
           int line = __builtin_LINE());
void check(cudnnStatus_t status, const char* purpose, const char* file = __builtin_FILE(),
           int line = __builtin_LINE());
void check(cublasStatus_t status, const char* purpose, const char* file = __builtin_FILE(),
           int line = __builtin_LINE());
void check(ncclResult_t status, const char* purpose, const char* file = __builtin_FILE(),
           int line = __builtin_LINE());

inline void destroy(cudaStream_t stream) { static_cast<void>(cudaStreamDestroy(stream)); }
inline void destroy(cudaEvent_t event) { static_cast<void>(cudaEventDestroy(event)); }
inline void destroy(cudaGraph_t graph) { static_cast<void>(cudaGraphDestroy(graph)); }
inline void destroy(cudaGraphExec_t graph) { static_cast<void>(cudaGraphExecDestroy(graph)); }
inline void destroy(cudnnHandle_t handle) { static_cast<void>(cudnnDestroy(handle)); }
inline void destroy(cudnnTensorDescriptor_t desc) { static_cast<void>(cudnnDestroyTensorDescriptor(desc)); }
inline void destroy(cudnnFilterDescriptor_t desc) { static_cast<void>(cudnnDestroyFilterDescriptor(desc)); }
inline void destroy(cudnnConvolutionDescriptor_t desc) {
  static_cast<void>(cudnnDestroyConvolutionDescriptor(desc));
}
inline void destroy(cublasLtHandle_t handle) { static_cast<void>(cublasLtDestroy(handle)); }
inline void destroy(cublasLtMatmulDesc_t desc) { static_cast<void>(cublasLtMatmulDescDestroy(desc)); }
inline void destroy(cublasLtMatrixLayout_t layout) { static_cast<void>(cublasLtMatrixLayoutDestroy(layout)); }
inline void destroy(cublasLtMatmulPreference_t choice) {
  static_cast<void>(cublasLtMatmulPreferenceDestroy(choice));
}

template <class T>
struct Destroy {
  void operator()(T object) const { destroy(object); }
};
template <class T>
using Owned = Handle<T, Destroy<T>{}>;

using Stream = Owned<cudaStream_t>;
using Event = Owned<cudaEvent_t>;
using Graph = Owned<cudaGraph_t>;
using GraphExec = Owned<cudaGraphExec_t>;

/// An event that orders streams, and with `timed` also measures time.
inline Event make_event(bool timed = false) {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming),
        "making an event");
  return Event(event);
}

/// Whether the event has happened. Throws Error{device} when the device has failed; `what` says at which work.
inline bool has_happened(const Event& event, const std::string& what) {
  const cudaError_t status = cudaEventQuery(event.get());
  if (status == cudaSuccess) return true;
  if (status != cudaErrorNotReady) check(status, what.c_str());
  static_cast<void>(cudaGetLastError());  // else the next launch would report "not ready" as its error
  return false;
}

}  // namespace cifar_mpi::cuda
