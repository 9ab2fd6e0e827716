#include <cublasLt.h>
#include <gtest/gtest.h>

#include <string>

#include "support/temp_dir.hpp"

namespace cifar_mpi::cuda {
namespace {

TEST(CuBlasLt, IsLoadedByTheFirstCall) {
  const auto is_loaded = [] { return read_file("/proc/self/maps").find("libcublasLt") != std::string::npos; };
  EXPECT_FALSE(is_loaded()) << "to load it takes 0.4 s, also in programs that use no GPU";
  EXPECT_EQ(cublasLtGetVersion() / 10000, CUBLAS_VER_MAJOR);
  EXPECT_TRUE(is_loaded());
  cublasLtMatrixLayout_t layout = nullptr;
  ASSERT_EQ(cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, 3, 2, 5), CUBLAS_STATUS_SUCCESS);
  const int batch = 7;
  EXPECT_EQ(
      cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch - 1),
      CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(
      cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch),
      CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cublasLtMatrixLayoutDestroy(layout), CUBLAS_STATUS_SUCCESS);
}

}  // namespace
}  // namespace cifar_mpi::cuda
