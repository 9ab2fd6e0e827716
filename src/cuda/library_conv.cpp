#include "cuda/library_conv.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <stdexcept>
#include <vector>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::cuda {
namespace {

constexpr float kOne = 1.0f;
constexpr float kZero = 0.0f;
/// More than the algorithms of any direction.
constexpr int kMostAlgorithms = 16;

cudnnDataType_t cudnn_type(ValueType type) {
  return type == ValueType::bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
}

Owned<cudnnTensorDescriptor_t> images(ValueType type, int batch, const Extent& extent) {
  cudnnTensorDescriptor_t made = nullptr;
  check(cudnnCreateTensorDescriptor(&made), "describing images");
  Owned<cudnnTensorDescriptor_t> desc(made);
  check(cudnnSetTensor4dDescriptor(made, CUDNN_TENSOR_NHWC, cudnn_type(type), batch, extent.channels,
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

/// What cuDNN proposes for one direction.
template <class Proposal>
struct Proposals {
  std::array<Proposal, kMostAlgorithms> all{};
  int count = 0;

  /// The suitable ones; none if cuDNN cannot be queried.
  std::vector<Proposal> candidates(cudnnStatus_t status) const {
    std::vector<Proposal> suitable;
    if (status != CUDNN_STATUS_SUCCESS) return suitable;
    const auto end = all.begin() + std::min(count, kMostAlgorithms);
    std::copy_if(all.begin(), end, std::back_inserter(suitable), [](const Proposal& proposal) {
      return proposal.status == CUDNN_STATUS_SUCCESS && proposal.determinism == CUDNN_DETERMINISTIC &&
             proposal.memory <= kMostConvWorkspace;
    });
    if (suitable.size() > kConvRungs) suitable.resize(kConvRungs);
    return suitable;
  }
};

/// cuDNN's functions for one direction, our function that starts it, and their operands and result.
template <class Propose, class FindSize, class Start, class A, class B, class Result>
struct ConvCalls {
  Propose* propose;
  FindSize* find_size;
  Start start;
  A a;
  B b;
  Result result;
};
template <class Propose, class FindSize, class Start, class A, class B, class Result>
ConvCalls(Propose*, FindSize*, Start, A, B, Result) -> ConvCalls<Propose, FindSize, Start, A, B, Result>;

}  // namespace

void LibraryConv::describe() {
  const int padding = shape_.kernel / 2;
  x_ = images(shape_.type, shape_.batch, shape_.in);
  y_ = images(shape_.type, shape_.batch, shape_.out());
  cudnnFilterDescriptor_t made = nullptr;
  check(cudnnCreateFilterDescriptor(&made), "describing weights");
  weights_ = Owned<cudnnFilterDescriptor_t>(made);
  check(cudnnSetFilter4dDescriptor(made, cudnn_type(shape_.type), CUDNN_TENSOR_NHWC, shape_.outputs,
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

template <class Proposal, class Algorithm, class Calls>
int LibraryConv::choose(Direction<Algorithm>& direction, const Calls& calls, const Trial& trial, int rung) {
  Proposals<Proposal> found;
  cudnnConvolutionDescriptor_t const conv = direction.conv.get();
  const std::vector<Proposal> proposals = found.candidates(calls.propose(
      dnn_, calls.a, calls.b, conv, calls.result, kMostAlgorithms, &found.count, found.all.data()));
  if (proposals.empty()) why_ = "cuDNN has no deterministic algorithm";
  for (; rung < static_cast<int>(proposals.size()); ++rung) {
    const Proposal& proposal = proposals[static_cast<std::size_t>(rung)];
    direction.algorithm = proposal.algo;
    std::string wrong = "cuDNN's algorithm does not run";
    if (cudnnSetConvolutionMathType(conv, proposal.mathType) == CUDNN_STATUS_SUCCESS &&
        calls.find_size(dnn_, calls.a, calls.b, conv, calls.result, direction.algorithm,
                        &direction.workspace) == CUDNN_STATUS_SUCCESS &&
        direction.workspace <= kMostConvWorkspace) {
      void* const workspace = trial.workspace(direction.workspace);
      if (workspace == nullptr && direction.workspace > 0) {
        wrong = concat("the GPU has no ", direction.workspace >> 20, " MiB left for cuDNN's algorithm");
      } else {
        const cudnnStatus_t status =
            (this->*calls.start)(trial.stream, trial.operand, trial.operand, trial.result, workspace);
        check(cudaStreamSynchronize(trial.stream), "trying a convolution");
        if (status == CUDNN_STATUS_SUCCESS) {
          workspace_bytes_ = std::max(workspace_bytes_, direction.workspace);
          return rung;
        }
      }
    }
    static_cast<void>(cudaGetLastError());  // else the next call would report it
    if (why_.empty()) why_ = wrong;
  }
  return kConvRungs;
}

int LibraryConv::plan(ConvDirection direction, const Trial& trial, int rung) {
  why_.clear();
  handles_ = trial.dnn;
  dnn_ = handles_->of(trial.stream);
  int& taken = rungs_[static_cast<std::size_t>(direction)];
  taken = kConvRungs;
  if (dnn_ == nullptr) {
    why_ = handles_->why();
    return taken;
  }
  if (!x_) describe();
  switch (direction) {
    case ConvDirection::forward:
      return taken = choose<cudnnConvolutionFwdAlgoPerf_t>(
                 forward_,
                 ConvCalls{cudnnGetConvolutionForwardAlgorithm_v7, cudnnGetConvolutionForwardWorkspaceSize,
                           &LibraryConv::forward, x_.get(), weights_.get(), y_.get()},
                 trial, rung);
    case ConvDirection::weight_gradient:
      return taken = choose<cudnnConvolutionBwdFilterAlgoPerf_t>(
                 weight_gradient_,
                 ConvCalls{cudnnGetConvolutionBackwardFilterAlgorithm_v7,
                           cudnnGetConvolutionBackwardFilterWorkspaceSize, &LibraryConv::weight_gradient,
                           x_.get(), y_.get(), weights_.get()},
                 trial, rung);
    case ConvDirection::data_gradient:
      return taken = choose<cudnnConvolutionBwdDataAlgoPerf_t>(
                 data_gradient_,
                 ConvCalls{cudnnGetConvolutionBackwardDataAlgorithm_v7,
                           cudnnGetConvolutionBackwardDataWorkspaceSize, &LibraryConv::data_gradient,
                           weights_.get(), y_.get(), x_.get()},
                 trial, rung);
  }
  throw std::logic_error("a convolution has three directions");
}

std::string LibraryConv::text() const {
  std::string algorithms;
  const auto add = [&](ConvDirection direction, int algorithm, const char* name) {
    if (has(direction) && rungs_[static_cast<std::size_t>(direction)] >= 0)
      algorithms += concat(algorithms.empty() ? "" : ", ", algorithm, ' ', name);
  };
  add(ConvDirection::forward, static_cast<int>(forward_.algorithm), "forward");
  add(ConvDirection::weight_gradient, static_cast<int>(weight_gradient_.algorithm), "weight gradient");
  add(ConvDirection::data_gradient, static_cast<int>(data_gradient_.algorithm), "data gradient");
  return concat("cuDNN ", name_of(shape_.type), ", algorithms ", algorithms);
}

cudnnStatus_t LibraryConv::forward(cudaStream_t stream, const void* x, const void* weights, void* y,
                                   void* workspace) const {
  cudnnHandle_t const dnn = handles_->of(stream);
  if (dnn == nullptr) return CUDNN_STATUS_NOT_INITIALIZED;
  return cudnnConvolutionForward(dnn, &kOne, x_.get(), x, weights_.get(), weights, forward_.conv.get(),
                                 forward_.algorithm, workspace, forward_.workspace, &kZero, y_.get(), y);
}

cudnnStatus_t LibraryConv::weight_gradient(cudaStream_t stream, const void* x, const void* grad_y,
                                           void* grad_weights, void* workspace) const {
  cudnnHandle_t const dnn = handles_->of(stream);
  if (dnn == nullptr) return CUDNN_STATUS_NOT_INITIALIZED;
  return cudnnConvolutionBackwardFilter(dnn, &kOne, x_.get(), x, y_.get(), grad_y,
                                        weight_gradient_.conv.get(), weight_gradient_.algorithm, workspace,
                                        weight_gradient_.workspace, &kZero, weights_.get(), grad_weights);
}

cudnnStatus_t LibraryConv::data_gradient(cudaStream_t stream, const void* weights, const void* grad_y,
                                         void* grad_x, void* workspace) const {
  cudnnHandle_t const dnn = handles_->of(stream);
  if (dnn == nullptr) return CUDNN_STATUS_NOT_INITIALIZED;
  return cudnnConvolutionBackwardData(dnn, &kOne, weights_.get(), weights, y_.get(), grad_y,
                                      data_gradient_.conv.get(), data_gradient_.algorithm, workspace,
                                      data_gradient_.workspace, &kZero, x_.get(), grad_x);
}

}  // namespace cifar_mpi::cuda
