#include <cublasLt.h>
#include <dlfcn.h>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"

/// The functions of cuBLASLt that the backend calls. The first call loads the library: loading it takes 0.4 s of
/// processor time, also in a program that uses no GPU. They throw Error{device} if the library or a function of
/// it is missing.
namespace cifar_mpi::cuda {
namespace {

/// The library's function of the same name as ours.
template <auto* kOurs>
auto* library(const char* name) {
  static auto* const function = [&] {
    void* const opened = dlopen(CIFAR_MPI_CUBLASLT, RTLD_NOW);  // stays loaded
    void* const found = opened == nullptr ? nullptr : dlsym(opened, name);
    if (found == nullptr)
      throw Error(ErrorKind::device, "cuBLASLt cannot be loaded: ", dlerror(),
                  "; check LD_LIBRARY_PATH and the installation of CUDA");
    return reinterpret_cast<decltype(kOurs)>(found);
  }();
  return function;
}

}  // namespace

extern "C" {

std::size_t cublasLtGetVersion() { return library<cublasLtGetVersion>(__func__)(); }

const char* cublasLtGetStatusString(cublasStatus_t status) {
  return library<cublasLtGetStatusString>(__func__)(status);
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { return library<cublasLtCreate>(__func__)(handle); }

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return library<cublasLtDestroy>(__func__)(handle); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType scale) {
  return library<cublasLtMatmulDescCreate>(__func__)(desc, compute, scale);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  return library<cublasLtMatmulDescDestroy>(__func__)(desc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              std::size_t bytes) {
  return library<cublasLtMatmulDescSetAttribute>(__func__)(desc, attribute, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t columns, std::int64_t stride) {
  return library<cublasLtMatrixLayoutCreate>(__func__)(layout, type, rows, columns, stride);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return library<cublasLtMatrixLayoutDestroy>(__func__)(layout);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                std::size_t bytes) {
  return library<cublasLtMatrixLayoutSetAttribute>(__func__)(layout, attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return library<cublasLtMatmulPreferenceCreate>(__func__)(preference);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return library<cublasLtMatmulPreferenceDestroy>(__func__)(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  return library<cublasLtMatmulPreferenceSetAttribute>(__func__)(preference, attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int* got) {
  return library<cublasLtMatmulAlgoGetHeuristic>(__func__)(handle, desc, a, b, c, d, preference, wanted,
                                                           results, got);
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, std::size_t bytes, std::size_t* written) {
  return library<cublasLtMatmulAlgoConfigGetAttribute>(__func__)(algorithm, attribute, value, bytes, written);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t layout_a, const void* b,
                              cublasLtMatrixLayout_t layout_b, const void* beta, const void* c,
                              cublasLtMatrixLayout_t layout_c, void* d, cublasLtMatrixLayout_t layout_d,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  return library<cublasLtMatmul>(__func__)(handle, desc, alpha, a, layout_a, b, layout_b, beta, c, layout_c,
                                           d, layout_d, algorithm, workspace, workspace_bytes, stream);
}

}  // extern "C"

}  // namespace cifar_mpi::cuda
