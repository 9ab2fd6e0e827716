#include <string_view>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cuda/handles.hpp"
#include "cuda/launch.hpp"

namespace cifar_mpi::cuda {
namespace {

[[noreturn]] void fail(ErrorKind kind, const char* library, const char* purpose, std::string_view words,
                       std::string_view file, int line) {
  const std::string_view name = file.substr(file.find_last_of('/') + 1);
  throw Error(kind, library, " failed while ", purpose, ": ", words, " (", name, ":", line, ")");
}

}  // namespace

void check(cudaError_t status, const char* purpose, const char* file, int line) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // else the next call would report an error that did no harm
  if (status == cudaErrorDevicesUnavailable) {
    throw Error(ErrorKind::device, "the GPU is busy (CUDA: ", cudaGetErrorString(status),
                "): its compute mode (nvidia-smi -q -d COMPUTE) allows no further process on it; end the "
                "process that uses it, choose another GPU with CUDA_VISIBLE_DEVICES, or let an administrator "
                "run nvidia-smi -c DEFAULT");
  }
  fail(ErrorKind::device, "CUDA", purpose, cudaGetErrorString(status), file, line);
}

void check_launch(const char* kernel) {
  const cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess) return;
  throw Error(ErrorKind::device, "CUDA could not start the kernel '", kernel,
              "': ", cudaGetErrorString(status));
}

void check(cudnnStatus_t status, const char* purpose, const char* file, int line) {
  if (status != CUDNN_STATUS_SUCCESS) {
    fail(ErrorKind::device, "cuDNN", purpose, cudnnGetErrorString(status), file, line);
  }
}

void check(cublasStatus_t status, const char* purpose, const char* file, int line) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    fail(ErrorKind::device, "cuBLASLt", purpose, cublasLtGetStatusString(status), file, line);
  }
}

void check(ncclResult_t status, const char* purpose, const char* file, int line) {
  if (status == ncclSuccess) return;
  const char* const more = ncclGetLastError(nullptr);
  const std::string words = more != nullptr && *more != '\0' ? concat(ncclGetErrorString(status), ", ", more)
                                                             : ncclGetErrorString(status);
  const bool local =
      status == ncclUnhandledCudaError || status == ncclInvalidArgument || status == ncclInvalidUsage;
  fail(local ? ErrorKind::device : ErrorKind::comm, "NCCL", purpose, words, file, line);
}

}  // namespace cifar_mpi::cuda
