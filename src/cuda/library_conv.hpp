#pragma once

#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "cifar_mpi/base/shape.hpp"
#include "cuda/handles.hpp"
#include "cuda/trial.hpp"
#include "cuda/value_type.hpp"

namespace cifar_mpi::cuda {

/// A convolution with equal padding on both sides, so an odd kernel, and ceil(n/stride) outputs.
struct LibraryConvShape {
  int batch = 0;
  Extent in;
  int outputs = 0;
  int kernel = 0;
  ValueType type = ValueType::fp32;
  int stride = 1;

  Extent out() const {
    return {(in.height + stride - 1) / stride, (in.width + stride - 1) / stride, outputs};
  }
};

enum class ConvDirection : std::uint8_t { forward, weight_gradient, data_gradient };

/// The rung of a direction that cuDNN does not compute: after all of its candidates.
constexpr int kConvRungs = 8;

/// A convolution by cuDNN: images NHWC, weights and their gradient [outputs, kernel, kernel, channels], all
/// of one type; sums are fp32 (with fp32 values the products are tf32). So in bf16 the weight gradient is
/// rounded once to bf16 before it is widened: the library has no kernel from bf16 values to an fp32 gradient.
///
///   bits    the same in every run: only algorithms that cuDNN calls deterministic are taken
///   order   runs on any stream; two that may run at once need workspaces of their own
class LibraryConv {
 public:
  explicit LibraryConv(const LibraryConvShape& shape) : shape_(shape) {}

  /// Chooses an algorithm for the direction: of cuDNN's deterministic proposals with a workspace of at most
  /// kMostConvWorkspace, the first from `rung` on (below kConvRungs) whose workspace can be allocated and that runs.
  /// Returns its rung, or kConvRungs if there is none; if that is above `rung`, `why` names the reason.
  int plan(ConvDirection direction, const Trial& trial, int rung = 0);
  /// Whether cuDNN computes this direction.
  bool has(ConvDirection direction) const { return rungs_[static_cast<std::size_t>(direction)] < kConvRungs; }

  /// Each starts the convolution of one direction; the caller checks the status.
  [[nodiscard]] cudnnStatus_t forward(cudaStream_t stream, const void* x, const void* weights, void* y,
                                      void* workspace) const;
  [[nodiscard]] cudnnStatus_t weight_gradient(cudaStream_t stream, const void* x, const void* grad_y,
                                              void* grad_weights, void* workspace) const;
  [[nodiscard]] cudnnStatus_t data_gradient(cudaStream_t stream, const void* weights, const void* grad_y,
                                            void* grad_x, void* workspace) const;

  std::size_t workspace_bytes() const { return workspace_bytes_; }
  const std::string& why() const { return why_; }
  /// "cuDNN bf16, algorithms 1 forward, 0 weight gradient": those that it computes.
  std::string text() const;

 private:
  /// One of the three: its own descriptor, because the kind of arithmetic belongs to it.
  template <class Algorithm>
  struct Direction {
    Owned<cudnnConvolutionDescriptor_t> conv;
    Algorithm algorithm{};
    std::size_t workspace = 0;
  };

  void describe();
  /// `plan` of one direction.
  template <class Proposal, class Algorithm, class Calls>
  int choose(Direction<Algorithm>& direction, const Calls& calls, const Trial& trial, int rung);

  LibraryConvShape shape_;
  DnnHandles* handles_ = nullptr;
  cudnnHandle_t dnn_ = nullptr;  ///< that it is planned with
  Owned<cudnnTensorDescriptor_t> x_, y_;
  Owned<cudnnFilterDescriptor_t> weights_;
  Direction<cudnnConvolutionFwdAlgo_t> forward_;
  Direction<cudnnConvolutionBwdFilterAlgo_t> weight_gradient_;
  Direction<cudnnConvolutionBwdDataAlgo_t> data_gradient_;
  std::array<int, 3> rungs_{-1, -1, -1};  ///< by ConvDirection; below 0: not planned
  std::size_t workspace_bytes_ = 0;
  std::string why_;
};

}  // namespace cifar_mpi::cuda
