#pragma once

#include <cstdint>
#include <string>
#include <variant>

/// The layers a network is made of: plain structs, one list, visited without a default branch. NetBuilder's
/// functions say what they read; each gives one value.
namespace cifar_mpi::model {

/// Initial filters of a convolution. normal: a truncated normal distribution. identity: the first filters copy one input
/// channel each, the others are uniform in ±1/√(inputs of an output). whitening: see model/whitening.hpp; without images
/// as the others of identity.
enum class Filters : std::uint8_t { normal, identity, whitening };

/// Cross-correlation with a square kernel, zero-padded as in `centred_padding` unless valid. Weights [k, k, in, out],
/// biases [out] unless without.
struct Conv2d {
  std::string name;
  int out_channels = 0;
  int kernel = 0;
  int stride = 1;
  bool with_bias = true;
  float weight_stddev = 0.0f;  ///< initial weights: truncated normal
  float bias = 0.0f;           ///< initial biases
  float weight_decay = 0.0f;   ///< adds weight_decay · ½‖weights‖² to the loss
  bool frozen = false;         ///< its parameters keep their values
  float rate_factor = 1.0f;    ///< multiplies the learning rate of its parameters
  bool valid = false;          ///< no padding: windows lie inside the image
  Filters filters = Filters::normal;
  bool frozen_weights = false;   ///< the weights keep their values, the biases train
  std::uint64_t bias_steps = 0;  ///< the biases train in the first so many steps of a run; 0: in all
};

struct Relu {};

/// silu: x / (1 + e^−x). gelu: x·Φ(x), Φ the distribution function of the normal distribution (by erf, without the tanh
/// approximation). scale: factor·x.
enum class PointwiseKind : std::uint8_t { silu, gelu, scale };

/// A function of each value by itself.
struct Pointwise {
  PointwiseKind kind = PointwiseKind::silu;
  float factor = 1.0f;  ///< of scale
};

/// y = scale · (x − mean) / √(variance + epsilon) + bias, per channel (Ioffe and Szegedy 2015). In training mean and
/// (biased) variance are those of the batch; evaluation takes the running ones, which move in each step: running ←
/// momentum · running + (1 − momentum) · batch. Parameters scale, bias, mean and variance, [channels] each.
struct BatchNorm {
  std::string name;
  float epsilon = 1e-5f;
  float momentum = 0.9f;
  bool with_scale = true;     ///< false: the scale is 1 and no parameter
  float weight_decay = 0.0f;  ///< of scale and bias
  bool frozen = false;        ///< scale and bias keep their values; the statistics move
  float rate_factor = 1.0f;   ///< multiplies the learning rate of scale and bias
};

/// SAME padding unless valid; a padded place never wins. With kernel 3 and stride 2 on an even extent nothing is padded at
/// the top or left, and one row and column are missing at the bottom and right.
struct MaxPool {
  std::string name;
  int kernel = 0;
  int stride = 0;
  bool valid =
      false;  ///< no padding: windows lie inside the image, and values after the last one are not read
};

/// y = x · (bias + alpha · Σ x²)^(−beta), the sum over the 2·depth_radius + 1 nearest channels; alpha is
/// TensorFlow's, not divided by the window.
struct LocalResponseNorm {
  std::string name;
  int depth_radius = 0;
  float bias = 1.0f;
  float alpha = 0.0f;
  float beta = 0.5f;
};

/// The mean of each channel over the image: [1, 1, channels].
struct GlobalAvgPool {
  std::string name;
};

/// The shortcut without parameters past a block that halves the image and widens it (He et al. 2016, option
/// A): every stride-th row and column, from the first; channels beyond the input's are zero.
struct Shortcut {
  std::string name;
  int out_channels = 0;
  int stride = 1;
};

/// y = x·weights + biases over the input flattened in NHWC order. Weights [in, out], biases [out] unless without.
struct Linear {
  std::string name;
  int outputs = 0;
  float weight_stddev = 0.0f;
  float bias = 0.0f;
  float weight_decay = 0.0f;
  bool frozen = false;
  float rate_factor = 1.0f;
  bool with_bias = true;
};

/// The sum of two values of one extent.
struct Add {
  std::string name;
};

/// Mean cross-entropy of the softmax; the last layer. Labels of 255 are left out.
struct SoftmaxCrossEntropy {};

using Layer = std::variant<Conv2d, Relu, Pointwise, MaxPool, LocalResponseNorm, BatchNorm, GlobalAvgPool,
                           Shortcut, Linear, Add, SoftmaxCrossEntropy>;

/// A visitor made of one lambda per layer type, for `std::visit`; a missing type does not compile.
template <class... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <class... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;

/// One axis under a padding that gives ceil(n/stride) outputs. Output i covers the places stride·i − before …
/// stride·i − before + kernel − 1.
struct Padding {
  int outputs = 0;
  int before = 0;
  int after = 0;
  bool operator==(const Padding&) const = default;
};

/// (kernel − 1)/2 at the start for any stride, so that the middle of an odd kernel lies on every stride-th place from
/// the first, as PyTorch's padding = kernel/2 has it; with stride 1 the same as `same_padding`. All arguments ≥ 1.
constexpr Padding centred_padding(int n, int kernel, int stride) {
  const int outputs = (n + stride - 1) / stride;
  const int before = (kernel - 1) / 2;
  const int after = (outputs - 1) * stride + kernel - before - n;
  return {outputs, before, after > 0 ? after : 0};
}

/// TensorFlow's SAME padding: half of the total at each side; an odd one goes to the end. All arguments ≥ 1.
constexpr Padding same_padding(int n, int kernel, int stride) {
  const int outputs = (n + stride - 1) / stride;
  const int span = (outputs - 1) * stride + kernel;
  const int total = span > n ? span - n : 0;
  return {outputs, total / 2, total - total / 2};
}

/// None: the windows that lie inside the axis. All arguments ≥ 1.
constexpr Padding no_padding(int n, int kernel, int stride) {
  return {n < kernel ? 0 : (n - kernel) / stride + 1, 0, 0};
}

constexpr Padding padding_of(const Conv2d& layer, int n) {
  return layer.valid ? no_padding(n, layer.kernel, layer.stride)
                     : centred_padding(n, layer.kernel, layer.stride);
}
constexpr Padding padding_of(const MaxPool& layer, int n) {
  return layer.valid ? no_padding(n, layer.kernel, layer.stride)
                     : same_padding(n, layer.kernel, layer.stride);
}

}  // namespace cifar_mpi::model
