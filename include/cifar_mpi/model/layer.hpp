#pragma once

#include <string>
#include <variant>

/// The layers a network is made of: plain structs, one list, visited without a default branch. NetBuilder's
/// functions say what they read; each gives one value.
namespace cifar_mpi::model {

/// Cross-correlation with a square kernel, stride 1, TensorFlow's SAME padding. Weights [k, k, in, out],
/// biases [out].
struct Conv2d {
  std::string name;
  int out_channels = 0;
  int kernel = 0;
  float weight_stddev = 0.0f;  ///< initial weights: truncated normal
  float bias = 0.0f;           ///< initial biases
  float weight_decay = 0.0f;   ///< adds weight_decay · ½‖weights‖² to the loss
  bool frozen = false;         ///< its parameters keep their values
  float rate_factor = 1.0f;    ///< of the learning rate of its parameters
};

struct Relu {};

/// SAME padding; a padded place never wins. With kernel 3 and stride 2 on an even extent nothing is padded at
/// the top or left, and one row and column are missing at the bottom and right.
struct MaxPool {
  std::string name;
  int kernel = 0;
  int stride = 0;
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

/// y = x·weights + biases over the input flattened in NHWC order. Weights [in, out], biases [out].
struct Linear {
  std::string name;
  int outputs = 0;
  float weight_stddev = 0.0f;
  float bias = 0.0f;
  float weight_decay = 0.0f;
  bool frozen = false;
  float rate_factor = 1.0f;
};

/// The sum of two values of one extent.
struct Add {
  std::string name;
};

/// Mean cross-entropy of the softmax; the last layer. Labels of 255 are left out.
struct SoftmaxCrossEntropy {};

using Layer = std::variant<Conv2d, Relu, MaxPool, LocalResponseNorm, Linear, Add, SoftmaxCrossEntropy>;

/// A visitor made of one lambda per layer type, for `std::visit`; a missing type does not compile.
template <class... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <class... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;

/// One axis under TensorFlow's SAME padding: ceil(n/stride) outputs; the padding they need in all, split in
/// two, the odd one behind. Output i covers the places stride·i − before … stride·i − before + kernel − 1.
struct SamePadding {
  int outputs = 0;
  int before = 0;
  int after = 0;
  bool operator==(const SamePadding&) const = default;
};

/// All arguments ≥ 1.
constexpr SamePadding same_padding(int n, int kernel, int stride) {
  const int outputs = (n + stride - 1) / stride;
  const int span = (outputs - 1) * stride + kernel;
  const int total = span > n ? span - n : 0;
  return {outputs, total / 2, total - total / 2};
}

}  // namespace cifar_mpi::model
