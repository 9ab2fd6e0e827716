#pragma once

#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <cstddef>
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

/// A convolution by cuDNN: images NHWC, weights and their gradient [outputs, kernel, kernel, channels], all
/// of one type; sums are fp32 (with fp32 values the products are tf32). So in bf16 the weight gradient is
/// rounded once to bf16 before it is widened: the library has no kernel from bf16 values to an fp32 gradient.
///
///   bits    the same in every run: only algorithms that cuDNN calls deterministic are taken
///   order   runs on any stream; two that may run at once need workspaces of their own
class LibraryConv {
 public:
  explicit LibraryConv(const LibraryConvShape& shape) : shape_(shape) {}

  /// Chooses an algorithm for each direction and runs it once: the first of cuDNN's proposals whose workspace
  /// is at most kMostConvWorkspace and can be had. False, and says why in `text`, when cuDNN has none.
  bool plan(const Trial& trial, bool wants_grad_x);

  void forward(cudaStream_t stream, const void* x, const void* weights, void* y, void* workspace) const;
  void weight_gradient(cudaStream_t stream, const void* x, const void* grad_y, void* grad_weights,
                       void* workspace) const;
  void data_gradient(cudaStream_t stream, const void* weights, const void* grad_y, void* grad_x,
                     void* workspace) const;

  std::size_t workspace_bytes() const { return workspace_bytes_; }
  const std::string& text() const { return text_; }

 private:
  /// One of the three: its own descriptor, because the kind of arithmetic belongs to it.
  template <class Algorithm>
  struct Direction {
    Owned<cudnnConvolutionDescriptor_t> conv;
    Algorithm algorithm{};
    std::size_t workspace = 0;
  };

  void describe();
  /// With workspaces of at most so many bytes; false where there is none.
  bool find(std::size_t most, bool wants_grad_x);
  bool find_forward(std::size_t most);
  bool find_weight_gradient(std::size_t most);
  bool find_data_gradient(std::size_t most);
  bool runs(const Trial& trial, bool wants_grad_x, void* workspace) const;
  cudnnStatus_t start_forward(cudaStream_t stream, const void* x, const void* weights, void* y,
                              void* workspace) const;
  cudnnStatus_t start_weight_gradient(cudaStream_t stream, const void* x, const void* grad_y,
                                      void* grad_weights, void* workspace) const;
  cudnnStatus_t start_data_gradient(cudaStream_t stream, const void* weights, const void* grad_y,
                                    void* grad_x, void* workspace) const;

  LibraryConvShape shape_;
  DnnHandles* handles_ = nullptr;
  cudnnHandle_t dnn_ = nullptr;  ///< that it is planned with
  Owned<cudnnTensorDescriptor_t> x_, y_;
  Owned<cudnnFilterDescriptor_t> weights_;
  Direction<cudnnConvolutionFwdAlgo_t> forward_;
  Direction<cudnnConvolutionBwdFilterAlgo_t> weight_gradient_;
  Direction<cudnnConvolutionBwdDataAlgo_t> data_gradient_;
  std::size_t workspace_bytes_ = 0;
  std::string text_;
};

}  // namespace cifar_mpi::cuda
