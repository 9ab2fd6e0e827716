#include "cuda/library_conv.hpp"

#include <algorithm>
#include <array>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::cuda {
namespace {

constexpr float kOne = 1.0f;
constexpr float kZero = 0.0f;
/// More than the algorithms of any direction.
constexpr int kMostAlgorithms = 16;

cudnnDataType_t data_type(ValueType type) {
  return type == ValueType::bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
}

Owned<cudnnTensorDescriptor_t> images(ValueType type, int batch, const Extent& extent) {
  cudnnTensorDescriptor_t made = nullptr;
  check(cudnnCreateTensorDescriptor(&made), "describing images");
  Owned<cudnnTensorDescriptor_t> desc(made);
  check(cudnnSetTensor4dDescriptor(made, CUDNN_TENSOR_NHWC, data_type(type), batch, extent.channels,
                                   extent.height, extent.width),
        "describing images");
  return desc;
}

Owned<cudnnConvolutionDescriptor_t> convolution(int padding, int stride) {
  cudnnConvolutionDescriptor_t made = nullptr;
  check(cudnnCreateConvolutionDescriptor(&made), "describing a convolution");
  Owned<cudnnConvolutionDescriptor_t> desc(made);
  check(cudnnSetConvolution2dDescriptor(made, padding, padding, stride, stride, 1, 1, CUDNN_CROSS_CORRELATION,
                                        CUDNN_DATA_FLOAT),
        "describing a convolution");
  return desc;
}

/// The first of cuDNN's proposals that is deterministic and content with the workspace; null without one.
template <class Proposals>
auto* first_fit(Proposals& proposals, int count, std::size_t most) {
  const auto end = proposals.begin() + std::min<int>(count, kMostAlgorithms);
  const auto it = std::find_if(proposals.begin(), end, [&](const auto& proposal) {
    return proposal.status == CUDNN_STATUS_SUCCESS && proposal.determinism == CUDNN_DETERMINISTIC &&
           proposal.memory <= most;
  });
  return it == end ? nullptr : &*it;
}

/// Takes over a proposal; false without one.
template <class Direction, class Proposal>
bool adopt(Direction& direction, const Proposal* proposal) {
  if (proposal == nullptr) return false;
  direction.algorithm = proposal->algo;
  return cudnnSetConvolutionMathType(direction.conv.get(), proposal->mathType) == CUDNN_STATUS_SUCCESS;
}

}  // namespace

void LibraryConv::describe() {
  const int padding = shape_.kernel / 2;
  x_ = images(shape_.type, shape_.batch, shape_.in);
  y_ = images(shape_.type, shape_.batch, shape_.out());
  cudnnFilterDescriptor_t made = nullptr;
  check(cudnnCreateFilterDescriptor(&made), "describing weights");
  weights_ = Owned<cudnnFilterDescriptor_t>(made);
  check(cudnnSetFilter4dDescriptor(made, data_type(shape_.type), CUDNN_TENSOR_NHWC, shape_.outputs,
                                   shape_.in.channels, shape_.kernel, shape_.kernel),
        "describing weights");
  forward_.conv = convolution(padding, shape_.stride);
  weight_gradient_.conv = convolution(padding, shape_.stride);
  data_gradient_.conv = convolution(padding, shape_.stride);
  // Default math lets fp32 go through tf32. What cuDNN proposes names the math it means.
  const cudnnMathType_t math = shape_.type == ValueType::bf16 ? CUDNN_TENSOR_OP_MATH : CUDNN_DEFAULT_MATH;
  for (const auto* conv : {&forward_.conv, &weight_gradient_.conv, &data_gradient_.conv}) {
    check(cudnnSetConvolutionMathType(conv->get(), math), "describing a convolution");
  }
}

bool LibraryConv::find_forward(std::size_t most) {
  std::array<cudnnConvolutionFwdAlgoPerf_t, kMostAlgorithms> proposals{};
  int count = 0;
  if (cudnnGetConvolutionForwardAlgorithm_v7(dnn_, x_.get(), weights_.get(), forward_.conv.get(), y_.get(),
                                             kMostAlgorithms, &count,
                                             proposals.data()) != CUDNN_STATUS_SUCCESS ||
      !adopt(forward_, first_fit(proposals, count, most))) {
    return false;
  }
  return cudnnGetConvolutionForwardWorkspaceSize(dnn_, x_.get(), weights_.get(), forward_.conv.get(),
                                                 y_.get(), forward_.algorithm,
                                                 &forward_.workspace) == CUDNN_STATUS_SUCCESS;
}

bool LibraryConv::find_weight_gradient(std::size_t most) {
  std::array<cudnnConvolutionBwdFilterAlgoPerf_t, kMostAlgorithms> proposals{};
  int count = 0;
  auto& d = weight_gradient_;
  if (cudnnGetConvolutionBackwardFilterAlgorithm_v7(dnn_, x_.get(), y_.get(), d.conv.get(), weights_.get(),
                                                    kMostAlgorithms, &count,
                                                    proposals.data()) != CUDNN_STATUS_SUCCESS ||
      !adopt(d, first_fit(proposals, count, most))) {
    return false;
  }
  return cudnnGetConvolutionBackwardFilterWorkspaceSize(dnn_, x_.get(), y_.get(), d.conv.get(),
                                                        weights_.get(), d.algorithm,
                                                        &d.workspace) == CUDNN_STATUS_SUCCESS;
}

bool LibraryConv::find_data_gradient(std::size_t most) {
  std::array<cudnnConvolutionBwdDataAlgoPerf_t, kMostAlgorithms> proposals{};
  int count = 0;
  auto& d = data_gradient_;
  if (cudnnGetConvolutionBackwardDataAlgorithm_v7(dnn_, weights_.get(), y_.get(), d.conv.get(), x_.get(),
                                                  kMostAlgorithms, &count,
                                                  proposals.data()) != CUDNN_STATUS_SUCCESS ||
      !adopt(d, first_fit(proposals, count, most))) {
    return false;
  }
  return cudnnGetConvolutionBackwardDataWorkspaceSize(dnn_, weights_.get(), y_.get(), d.conv.get(), x_.get(),
                                                      d.algorithm, &d.workspace) == CUDNN_STATUS_SUCCESS;
}

bool LibraryConv::runs(const Trial& trial, bool wants_grad_x, void* workspace) const {
  const bool started =
      start_forward(trial.stream, trial.operand, trial.operand, trial.result, workspace) ==
          CUDNN_STATUS_SUCCESS &&
      start_weight_gradient(trial.stream, trial.operand, trial.operand, trial.result, workspace) ==
          CUDNN_STATUS_SUCCESS &&
      (!wants_grad_x || start_data_gradient(trial.stream, trial.operand, trial.operand, trial.result,
                                            workspace) == CUDNN_STATUS_SUCCESS);
  check(cudaStreamSynchronize(trial.stream), "trying a convolution");
  return started;
}

bool LibraryConv::find(std::size_t most, bool wants_grad_x) {
  if (!find_forward(most) || !find_weight_gradient(most) || (wants_grad_x && !find_data_gradient(most))) {
    return false;
  }
  workspace_bytes_ = std::max({forward_.workspace, weight_gradient_.workspace, data_gradient_.workspace});
  return workspace_bytes_ <= most;
}

bool LibraryConv::plan(const Trial& trial, bool wants_grad_x) {
  handles_ = trial.dnn;
  dnn_ = handles_->of(trial.stream);
  if (dnn_ == nullptr) {
    text_ = handles_->why();
    return false;
  }
  describe();
  void* workspace = nullptr;
  for (std::size_t most = kMostConvWorkspace; workspace == nullptr; most = workspace_bytes_ - 1) {
    if (!find(most, wants_grad_x)) {
      text_ = concat("cuDNN has no deterministic algorithm with ", most >> 20, " MiB");
      return false;
    }
    workspace = trial.workspace(workspace_bytes_);
    if (workspace_bytes_ == 0) break;
  }
  if (!runs(trial, wants_grad_x, workspace)) {
    static_cast<void>(cudaGetLastError());
    text_ = "cuDNN's algorithms do not run";
    return false;
  }
  text_ = concat("cuDNN ", name_of(shape_.type), ", algorithms ", static_cast<int>(forward_.algorithm),
                 " forward, ", static_cast<int>(weight_gradient_.algorithm), " weight gradient");
  if (wants_grad_x) text_ += concat(", ", static_cast<int>(data_gradient_.algorithm), " data gradient");
  return true;
}

cudnnStatus_t LibraryConv::start_forward(cudaStream_t stream, const void* x, const void* weights, void* y,
                                         void* workspace) const {
  cudnnHandle_t const dnn = handles_->of(stream);
  if (dnn == nullptr) return CUDNN_STATUS_NOT_INITIALIZED;
  return cudnnConvolutionForward(dnn, &kOne, x_.get(), x, weights_.get(), weights, forward_.conv.get(),
                                 forward_.algorithm, workspace, forward_.workspace, &kZero, y_.get(), y);
}

cudnnStatus_t LibraryConv::start_weight_gradient(cudaStream_t stream, const void* x, const void* grad_y,
                                                 void* grad_weights, void* workspace) const {
  cudnnHandle_t const dnn = handles_->of(stream);
  if (dnn == nullptr) return CUDNN_STATUS_NOT_INITIALIZED;
  return cudnnConvolutionBackwardFilter(dnn, &kOne, x_.get(), x, y_.get(), grad_y,
                                        weight_gradient_.conv.get(), weight_gradient_.algorithm, workspace,
                                        weight_gradient_.workspace, &kZero, weights_.get(), grad_weights);
}

cudnnStatus_t LibraryConv::start_data_gradient(cudaStream_t stream, const void* weights, const void* grad_y,
                                               void* grad_x, void* workspace) const {
  cudnnHandle_t const dnn = handles_->of(stream);
  if (dnn == nullptr) return CUDNN_STATUS_NOT_INITIALIZED;
  return cudnnConvolutionBackwardData(dnn, &kOne, weights_.get(), weights, y_.get(), grad_y,
                                      data_gradient_.conv.get(), data_gradient_.algorithm, workspace,
                                      data_gradient_.workspace, &kZero, x_.get(), grad_x);
}

void LibraryConv::forward(cudaStream_t stream, const void* x, const void* weights, void* y,
                          void* workspace) const {
  check(start_forward(stream, x, weights, y, workspace), "starting a convolution");
}

void LibraryConv::weight_gradient(cudaStream_t stream, const void* x, const void* grad_y, void* grad_weights,
                                  void* workspace) const {
  check(start_weight_gradient(stream, x, grad_y, grad_weights, workspace), "starting a weight gradient");
}

void LibraryConv::data_gradient(cudaStream_t stream, const void* weights, const void* grad_y, void* grad_x,
                                void* workspace) const {
  check(start_data_gradient(stream, weights, grad_y, grad_x, workspace), "starting a data gradient");
}

}  // namespace cifar_mpi::cuda
