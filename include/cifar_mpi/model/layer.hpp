#pragma once

#include <string>
#include <variant>

/// The layers a network is made of: plain structs, one list, visited without a default branch.
namespace cifar_mpi::model {

/// Cross-correlation with a square kernel, stride 1, TensorFlow's SAME padding. Weights [k, k, in, out], biases [out].
struct Conv2d {
  std::string name;
  int out_channels = 0;
  int kernel = 0;
  float weight_stddev = 0.0f;  ///< initial weights: truncated normal
  float bias = 0.0f;           ///< initial biases
  float weight_decay = 0.0f;   ///< adds weight_decay · ½‖weights‖² to the loss
};

struct Relu {};

/// SAME padding: an output row starts at stride·i; what lies past the bottom or right edge does not count.
struct MaxPool {
  std::string name;
  int kernel = 0;
  int stride = 0;
};

/// y = x · (bias + alpha · Σ x²)^(−beta), the sum over the 2·depth_radius + 1 nearest channels; alpha is TensorFlow's, not
/// divided by the window.
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
};

/// Mean cross-entropy of the softmax; the last layer. Labels of 255 are left out.
struct SoftmaxCrossEntropy {};

using Layer = std::variant<Conv2d, Relu, MaxPool, LocalResponseNorm, Linear, SoftmaxCrossEntropy>;

}  // namespace cifar_mpi::model
