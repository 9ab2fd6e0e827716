#include <cublasLt.h>
#include <dlfcn.h>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"

/// The functions of cuBLASLt that the backend calls. The first call loads the library: loading it takes 0.4 s of
/// processor time, also in a program that uses no GPU. They throw Error{device} if the library or a function of
/// it is missing.
namespace cifar_mpi::cuda {
namespace {

template <class Function>
Function* find(const char* name) {
  void* const library = dlopen(CIFAR_MPI_CUBLASLT, RTLD_NOW);  // stays loaded
  void* const found = library == nullptr ? nullptr : dlsym(library, name);
  if (found == nullptr)
    throw Error(ErrorKind::device, concat("cuBLASLt cannot be loaded: ", dlerror(),
                                          "; check LD_LIBRARY_PATH and the installation of CUDA"));
  return reinterpret_cast<Function*>(found);
}

}  // namespace

extern "C" {

std::size_t cublasLtGetVersion() {
  static const auto call = find<decltype(cublasLtGetVersion)>("cublasLtGetVersion");
  return call();
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  static const auto call = find<decltype(cublasLtGetStatusString)>("cublasLtGetStatusString");
  return call(status);
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static const auto call = find<decltype(cublasLtCreate)>("cublasLtCreate");
  return call(handle);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  static const auto call = find<decltype(cublasLtDestroy)>("cublasLtDestroy");
  return call(handle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType scale) {
  static const auto call = find<decltype(cublasLtMatmulDescCreate)>("cublasLtMatmulDescCreate");
  return call(desc, compute, scale);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  static const auto call = find<decltype(cublasLtMatmulDescDestroy)>("cublasLtMatmulDescDestroy");
  return call(desc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              std::size_t bytes) {
  static const auto call = find<decltype(cublasLtMatmulDescSetAttribute)>("cublasLtMatmulDescSetAttribute");
  return call(desc, attribute, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t columns, std::int64_t stride) {
  static const auto call = find<decltype(cublasLtMatrixLayoutCreate)>("cublasLtMatrixLayoutCreate");
  return call(layout, type, rows, columns, stride);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  static const auto call = find<decltype(cublasLtMatrixLayoutDestroy)>("cublasLtMatrixLayoutDestroy");
  return call(layout);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                std::size_t bytes) {
  static const auto call =
      find<decltype(cublasLtMatrixLayoutSetAttribute)>("cublasLtMatrixLayoutSetAttribute");
  return call(layout, attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  static const auto call = find<decltype(cublasLtMatmulPreferenceCreate)>("cublasLtMatmulPreferenceCreate");
  return call(preference);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  static const auto call = find<decltype(cublasLtMatmulPreferenceDestroy)>("cublasLtMatmulPreferenceDestroy");
  return call(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  static const auto call =
      find<decltype(cublasLtMatmulPreferenceSetAttribute)>("cublasLtMatmulPreferenceSetAttribute");
  return call(preference, attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int* got) {
  static const auto call = find<decltype(cublasLtMatmulAlgoGetHeuristic)>("cublasLtMatmulAlgoGetHeuristic");
  return call(handle, desc, a, b, c, d, preference, wanted, results, got);
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, std::size_t bytes, std::size_t* written) {
  static const auto call =
      find<decltype(cublasLtMatmulAlgoConfigGetAttribute)>("cublasLtMatmulAlgoConfigGetAttribute");
  return call(algorithm, attribute, value, bytes, written);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t layout_a, const void* b,
                              cublasLtMatrixLayout_t layout_b, const void* beta, const void* c,
                              cublasLtMatrixLayout_t layout_c, void* d, cublasLtMatrixLayout_t layout_d,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  static const auto call = find<decltype(cublasLtMatmul)>("cublasLtMatmul");
  return call(handle, desc, alpha, a, layout_a, b, layout_b, beta, c, layout_c, d, layout_d, algorithm,
              workspace, workspace_bytes, stream);
}

}  // extern "C"

}  // namespace cifar_mpi::cuda
