#include <cudnn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cuda/stand_in/gpu.hpp"
#include "cuda/stand_in/values.hpp"

/// The part of cuDNN that the backend calls: convolutions of NHWC images, one algorithm for each direction,
/// which sums in fp32.

using cifar_mpi::stand_in::has_fault;
using cifar_mpi::stand_in::load;
using cifar_mpi::stand_in::store;
using cifar_mpi::stand_in::to_tf32;
using cifar_mpi::stand_in::Type;

struct cudnnTensorStruct {
  Type type = Type::fp32;
  int n = 0, channels = 0, height = 0, width = 0;
};
struct cudnnFilterStruct {
  Type type = Type::fp32;
  int outputs = 0, channels = 0, height = 0, width = 0;
};
struct cudnnConvolutionStruct {
  int padding = 0;
  int stride = 1;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
};
struct cudnnContext {
  cudaStream_t stream = nullptr;
};

namespace {

/// Two proposals: the right one, and one before it that needs more memory than available, or as much as
/// STAND_IN_CUDNN_MIB says.
constexpr int kChosen = 3;
constexpr int kGreedy = 2;

std::size_t greed() {
  const char* const mib = std::getenv("STAND_IN_CUDNN_MIB");
  return (mib != nullptr ? std::strtoull(mib, nullptr, 10) : 1 << 20) << 20;
}

/// The memory that the kernels of each direction need.
template <class Algorithm>
constexpr std::size_t conv_workspace = 0;
template <>
constexpr std::size_t conv_workspace<cudnnConvolutionFwdAlgo_t> = 10'000;
template <>
constexpr std::size_t conv_workspace<cudnnConvolutionBwdFilterAlgo_t> = 20'000;
template <>
constexpr std::size_t conv_workspace<cudnnConvolutionBwdDataAlgo_t> = 30'000;

/// 0 if it does not run.
template <class Algorithm>
std::size_t wanted_by(Algorithm algorithm) {
  if (algorithm == kGreedy) return has_fault("best") ? 0 : greed();
  return algorithm == kChosen ? conv_workspace<Algorithm> : 0;
}

Type type_of(cudnnDataType_t type) { return type == CUDNN_DATA_BFLOAT16 ? Type::bf16 : Type::fp32; }

/// One convolution: images x, weights w [outputs, kernel, kernel, channels], results y.
struct Shape {
  cudnnTensorStruct x, y;
  cudnnFilterStruct w;
  cudnnConvolutionStruct conv;

  bool fits() const {
    return x.type == y.type && x.type == w.type && x.n == y.n && x.channels == w.channels &&
           y.channels == w.outputs &&
           y.height == (x.height + 2 * conv.padding - w.height) / conv.stride + 1 &&
           y.width == (x.width + 2 * conv.padding - w.width) / conv.stride + 1;
  }

  /// Calls visit(y pixel, tap, x pixel) for each pair within the image, in units of pixels and taps.
  template <class Visit>
  void visit_taps(Visit visit) const {
    for (int n = 0; n < y.n; ++n) {
      for (int row = 0; row < y.height; ++row) {
        for (int column = 0; column < y.width; ++column) visit_window(n, row, column, visit);
      }
    }
  }
  template <class Visit>
  void visit_window(int n, int row, int column, Visit visit) const {
    for (int ky = 0; ky < w.height; ++ky) {
      for (int kx = 0; kx < w.width; ++kx) {
        const int sy = row * conv.stride + ky - conv.padding, sx = column * conv.stride + kx - conv.padding;
        if (sy < 0 || sx < 0 || sy >= x.height || sx >= x.width) continue;
        visit(static_cast<std::size_t>((n * y.height + row) * y.width + column),
              static_cast<std::size_t>(ky * w.width + kx),
              static_cast<std::size_t>((n * x.height + sy) * x.width + sx));
      }
    }
  }

  /// As tensor cores see it.
  std::vector<float> widen(const void* array, std::size_t count) const {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) {
      const float value = load(array, x.type, i);
      values[i] = x.type == Type::fp32 && conv.math != CUDNN_FMA_MATH ? to_tf32(value) : value;
    }
    return values;
  }
  void narrow(const std::vector<float>& values, void* array) const {
    for (std::size_t i = 0; i < values.size(); ++i) store(array, x.type, i, values[i]);
    constexpr int kNowAndThen = 7;
    static int written = 0;
    if (has_fault("flip") && ++written % kNowAndThen == 0) static_cast<unsigned char*>(array)[1] ^= 1;
  }

  std::size_t in() const { return static_cast<std::size_t>(x.channels); }
  std::size_t out() const { return static_cast<std::size_t>(y.channels); }
  std::size_t taps() const { return static_cast<std::size_t>(w.height * w.width); }
  std::size_t x_values() const { return static_cast<std::size_t>(x.n * x.height * x.width) * in(); }
  std::size_t y_values() const { return static_cast<std::size_t>(y.n * y.height * y.width) * out(); }
  std::size_t w_values() const { return out() * taps() * in(); }
  std::size_t weight(std::size_t o, std::size_t tap) const { return (o * taps() + tap) * in(); }

  void forward(const void* images, const void* weights, void* results) const {
    const std::vector<float> a = widen(images, x_values()), b = widen(weights, w_values());
    std::vector<float> sums(y_values(), 0.0f);
    const std::size_t end = taps() - (has_fault("conv") ? 1 : 0);
    visit_taps([&](std::size_t to, std::size_t tap, std::size_t from) {
      if (tap >= end) return;
      for (std::size_t o = 0; o < out(); ++o) {
        float sum = 0.0f;
        for (std::size_t c = 0; c < in(); ++c) sum += a[from * in() + c] * b[weight(o, tap) + c];
        sums[to * out() + o] += sum;
      }
    });
    if (has_fault("nan"))
      std::replace_if(
          sums.begin(), sums.end(), [](float sum) { return sum != sum; }, 0.0f);
    narrow(sums, results);
  }
  void weight_gradient(const void* images, const void* grad, void* results) const {
    const std::vector<float> a = widen(images, x_values()), b = widen(grad, y_values());
    std::vector<float> sums(w_values(), 0.0f);
    visit_taps([&](std::size_t to, std::size_t tap, std::size_t from) {
      for (std::size_t o = 0; o < out(); ++o) {
        const float factor = b[to * out() + o];
        for (std::size_t c = 0; c < in(); ++c) sums[weight(o, tap) + c] += factor * a[from * in() + c];
      }
    });
    narrow(sums, results);
  }
  void data_gradient(const void* weights, const void* grad, void* results) const {
    const std::vector<float> a = widen(weights, w_values()), b = widen(grad, y_values());
    std::vector<float> sums(x_values(), 0.0f);
    visit_taps([&](std::size_t to, std::size_t tap, std::size_t from) {
      for (std::size_t o = 0; o < out(); ++o) {
        const float factor = b[to * out() + o];
        for (std::size_t c = 0; c < in(); ++c) sums[from * in() + c] += factor * a[weight(o, tap) + c];
      }
    });
    narrow(sums, results);
  }
};

template <class Algorithm, class Run>
cudnnStatus_t start(cudnnHandle_t handle, const Shape& shape, Algorithm algorithm, const void* alpha,
                    const void* beta, void* workspace, std::size_t workspace_bytes, Run run) {
  const std::size_t bytes = wanted_by(algorithm);
  if (!shape.fits() || bytes == 0 || workspace_bytes < bytes || workspace == nullptr ||
      *static_cast<const float*>(alpha) != 1.0f || *static_cast<const float*>(beta) != 0.0f) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  cifar_mpi::stand_in::start(handle->stream, "cuDNN", workspace, bytes, run);
  return CUDNN_STATUS_SUCCESS;
}

/// Proposals that do not run, are not deterministic, or need more memory than available; then a usable one.
template <class Proposal>
cudnnStatus_t propose(const Shape& shape, int wanted, int* found, Proposal* proposals) {
  if (!shape.fits()) return CUDNN_STATUS_BAD_PARAM;
  *found = std::min(wanted, kChosen + 1);
  for (int i = 0; i < *found; ++i) {
    proposals[i] = {};
    proposals[i].algo = static_cast<decltype(proposals[i].algo)>(i);
    proposals[i].status = i == 0 ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
    proposals[i].determinism = i == 1 ? CUDNN_NON_DETERMINISTIC : CUDNN_DETERMINISTIC;
    proposals[i].memory = i == kGreedy ? greed() : conv_workspace<decltype(proposals[i].algo)>;
    proposals[i].mathType = CUDNN_TENSOR_OP_MATH;
  }
  return CUDNN_STATUS_SUCCESS;
}

template <class Algorithm>
cudnnStatus_t ask_workspace(Algorithm algorithm, std::size_t* bytes) {
  *bytes = wanted_by(algorithm);
  return *bytes > 0 ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}

}  // namespace

std::size_t cudnnGetVersion() { return CUDNN_VERSION; }
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  if (has_fault("dnn")) return CUDNN_STATUS_NOT_INITIALIZED;
  *handle = new cudnnContext;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  // device memory of a handle would be in use on both
  if (handle->stream != nullptr && handle->stream != stream) return CUDNN_STATUS_BAD_PARAM;
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
const char* cudnnGetErrorString(cudnnStatus_t) { return "an error of the stand-in GPU's cuDNN"; }

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* desc) {
  *desc = new cudnnTensorStruct;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t desc) {
  delete desc;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t desc, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w) {
  if (format != CUDNN_TENSOR_NHWC) return CUDNN_STATUS_NOT_SUPPORTED;
  *desc = {type_of(type), n, c, h, w};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* desc) {
  *desc = new cudnnFilterStruct;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t desc) {
  delete desc;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t desc, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w) {
  if (format != CUDNN_TENSOR_NHWC) return CUDNN_STATUS_NOT_SUPPORTED;
  *desc = {type_of(type), k, c, h, w};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* desc) {
  *desc = new cudnnConvolutionStruct;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t desc) {
  delete desc;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t desc, int pad_h, int pad_w, int u,
                                              int v, int dilation_h, int dilation_w,
                                              cudnnConvolutionMode_t mode, cudnnDataType_t compute) {
  if (pad_h != pad_w || u < 1 || u != v || dilation_h != 1 || dilation_w != 1 ||
      mode != CUDNN_CROSS_CORRELATION || compute != CUDNN_DATA_FLOAT) {
    return CUDNN_STATUS_NOT_SUPPORTED;
  }
  desc->padding = pad_h;
  desc->stride = u;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t desc, cudnnMathType_t math) {
  desc->math = math;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t, const cudnnTensorDescriptor_t x,
                                                     const cudnnFilterDescriptor_t w,
                                                     const cudnnConvolutionDescriptor_t conv,
                                                     const cudnnTensorDescriptor_t y, const int wanted,
                                                     int* found, cudnnConvolutionFwdAlgoPerf_t* proposals) {
  return propose({*x, *y, *w, *conv}, wanted, found, proposals);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t, const cudnnTensorDescriptor_t x,
                                                            const cudnnTensorDescriptor_t y,
                                                            const cudnnConvolutionDescriptor_t conv,
                                                            const cudnnFilterDescriptor_t w, const int wanted,
                                                            int* found,
                                                            cudnnConvolutionBwdFilterAlgoPerf_t* proposals) {
  return propose({*x, *y, *w, *conv}, wanted, found, proposals);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t, const cudnnFilterDescriptor_t w,
                                                          const cudnnTensorDescriptor_t y,
                                                          const cudnnConvolutionDescriptor_t conv,
                                                          const cudnnTensorDescriptor_t x, const int wanted,
                                                          int* found,
                                                          cudnnConvolutionBwdDataAlgoPerf_t* proposals) {
  return propose({*x, *y, *w, *conv}, wanted, found, proposals);
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t, const cudnnTensorDescriptor_t,
                                                      const cudnnFilterDescriptor_t,
                                                      const cudnnConvolutionDescriptor_t,
                                                      const cudnnTensorDescriptor_t,
                                                      cudnnConvolutionFwdAlgo_t algorithm,
                                                      std::size_t* bytes) {
  return ask_workspace(algorithm, bytes);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t, const cudnnTensorDescriptor_t,
                                                             const cudnnTensorDescriptor_t,
                                                             const cudnnConvolutionDescriptor_t,
                                                             const cudnnFilterDescriptor_t,
                                                             cudnnConvolutionBwdFilterAlgo_t algorithm,
                                                             std::size_t* bytes) {
  return ask_workspace(algorithm, bytes);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t, const cudnnFilterDescriptor_t,
                                                           const cudnnTensorDescriptor_t,
                                                           const cudnnConvolutionDescriptor_t,
                                                           const cudnnTensorDescriptor_t,
                                                           cudnnConvolutionBwdDataAlgo_t algorithm,
                                                           std::size_t* bytes) {
  return ask_workspace(algorithm, bytes);
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha,
                                      const cudnnTensorDescriptor_t x, const void* images,
                                      const cudnnFilterDescriptor_t w, const void* weights,
                                      const cudnnConvolutionDescriptor_t conv,
                                      cudnnConvolutionFwdAlgo_t algorithm, void* workspace,
                                      std::size_t workspace_bytes, const void* beta,
                                      const cudnnTensorDescriptor_t y, void* results) {
  if (has_fault("no_forward")) return CUDNN_STATUS_EXECUTION_FAILED;
  const Shape shape{*x, *y, *w, *conv};
  return start(handle, shape, algorithm, alpha, beta, workspace, workspace_bytes,
               [=] { shape.forward(images, weights, results); });
}
cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void* alpha,
                                             const cudnnTensorDescriptor_t x, const void* images,
                                             const cudnnTensorDescriptor_t y, const void* grad,
                                             const cudnnConvolutionDescriptor_t conv,
                                             cudnnConvolutionBwdFilterAlgo_t algorithm, void* workspace,
                                             std::size_t workspace_bytes, const void* beta,
                                             const cudnnFilterDescriptor_t w, void* results) {
  if (has_fault("no_weights")) return CUDNN_STATUS_EXECUTION_FAILED;
  const Shape shape{*x, *y, *w, *conv};
  return start(handle, shape, algorithm, alpha, beta, workspace, workspace_bytes,
               [=] { shape.weight_gradient(images, grad, results); });
}
cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha,
                                           const cudnnFilterDescriptor_t w, const void* weights,
                                           const cudnnTensorDescriptor_t y, const void* grad,
                                           const cudnnConvolutionDescriptor_t conv,
                                           cudnnConvolutionBwdDataAlgo_t algorithm, void* workspace,
                                           std::size_t workspace_bytes, const void* beta,
                                           const cudnnTensorDescriptor_t x, void* results) {
  if (has_fault("backward")) return CUDNN_STATUS_EXECUTION_FAILED;
  const Shape shape{*x, *y, *w, *conv};
  return start(handle, shape, algorithm, alpha, beta, workspace, workspace_bytes,
               [=] { shape.data_gradient(weights, grad, results); });
}
