#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "cuda/handles.hpp"
#include "cuda/plain_matmul.hpp"
#include "cuda/trial.hpp"
#include "cuda/value_type.hpp"

namespace cifar_mpi::cuda {

/// After all proposals of cuBLASLt.
constexpr int kPlainRung = 1000;

/// A matrix product by cuBLASLt, or by a plain kernel of ours if cuBLASLt has none. Sums are fp32.
///
///   bits    the same in every run on the same kind of GPU: one algorithm, chosen by shape and kept
///   order   runs on any stream; products that may run at once need separate workspaces
class Matmul {
 public:
  explicit Matmul(const MatmulShape& shape) : shape_(shape) {}

  /// Selects cuBLASLt's first proposal whose workspace can be allocated and that starts, and runs it once. If
  /// its ReLU turns NaN into 0, as max does on a GPU, a kernel of ours replaces that ReLU: divergence must be
  /// visible. Throws Error{device} only when the device is lost or lacks memory for the slices. `rung` counts
  /// the proposals from 0: earlier ones are skipped; kPlainRung skips all.
  void plan(const Trial& trial, int rung = 0);
  /// The rung of the algorithm; kPlainRung if cuBLASLt was asked and no proposal runs.
  int rung() const { return rung_; }
  /// Enqueues the product; pointers are 16-byte aligned. `bias` is unused without an epilogue.
  void run(cudaStream_t stream, const void* a, const void* b, void* d, const void* bias,
           void* workspace) const;

  const MatmulShape& shape() const { return shape_; }
  std::size_t workspace_bytes() const { return workspace_bytes_; }
  std::size_t bytes_a() const { return static_cast<std::size_t>(shape_.m * shape_.k) * bytes_per(shape_.in); }
  std::size_t bytes_b() const { return static_cast<std::size_t>(shape_.k * shape_.n) * bytes_per(shape_.in); }
  std::size_t bytes_d() const {
    return static_cast<std::size_t>(shape_.m * shape_.n) * bytes_per(shape_.out);
  }
  /// "73728x64x80 bf16: cuBLASLt 66, tile 18, stages 3, split 1, …"
  std::string text() const;

 private:
  bool find_algorithm(const Trial& trial);
  /// Whether NaN in the biases yields NaN in the result.
  bool keeps_nan(const Trial& trial) const;
  /// Selects the first proposal that starts with a workspace of at most so many bytes. Without one,
  /// `refused_workspace` is the smallest workspace that could not be allocated, if any.
  bool take_first(const Trial& trial, std::size_t most_workspace,
                  std::optional<std::size_t>& refused_workspace);
  cublasStatus_t launch(cudaStream_t stream, const void* a, const void* b, void* d, const void* bias,
                        void* workspace) const;
  /// Bytes of the slices' products, before the library's part of the workspace; 0 with one slice.
  std::size_t slices_bytes() const;
  std::size_t workspace_of_library() const { return workspace_bytes_ - slices_bytes(); }

  MatmulShape shape_;
  cublasLtHandle_t blas_ = nullptr;
  Owned<cublasLtMatmulDesc_t> operation_;
  Owned<cublasLtMatrixLayout_t> layout_a_, layout_b_, layout_d_;
  cublasLtMatmulAlgo_t algorithm_{};
  std::size_t workspace_bytes_ = 0;
  int first_rung_ = 0, rung_ = 0;
  bool planned_ = false;      ///< by cuBLASLt
  bool relu_behind_ = false;  ///< a kernel of ours, because cuBLASLt's ReLU turns NaN into 0
};

}  // namespace cifar_mpi::cuda
