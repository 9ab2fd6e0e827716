#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <nccl.h>

/// Error checks for all calls of the CUDA runtime, cuDNN, cuBLASLt and NCCL.
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

}  // namespace cifar_mpi::cuda
