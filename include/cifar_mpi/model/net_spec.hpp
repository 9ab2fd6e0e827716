#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cifar_mpi/base/shape.hpp"
#include "cifar_mpi/model/layer.hpp"

namespace cifar_mpi::model {

/// A network with all shapes inferred.
struct NetSpec {
  std::string name;
  Extent input;
  int classes = 0;
  std::vector<Layer> layers;
  std::vector<Extent> outputs;  ///< outputs[i] is what layers[i] gives

  Extent input_of(std::size_t layer) const { return layer == 0 ? input : outputs[layer - 1]; }
};

/// Infers the shapes. Throws Error{usage} when a layer does not fit, or the last is not SoftmaxCrossEntropy
/// over `classes`.
NetSpec make_net(std::string name, Extent input, int classes, std::vector<Layer> layers);

/// Floating-point operations of one pass over one image (a multiply-add is two).
struct Flops {
  double nominal = 0.0;   ///< every tap of every kernel, as frameworks count
  double in_image = 0.0;  ///< only taps that fall inside the image; what a CPU kernel must do
};

/// One entry per layer; only Conv2d and Linear have any.
std::vector<Flops> forward_flops(const NetSpec& net);

/// A whole training step of one image: forward, weight gradients, and data gradients but for the first such
/// layer.
Flops training_flops(const NetSpec& net);

/// Names of the models in the catalog.
std::vector<std::string_view> catalog();

/// The named model for images of `input` and `classes` classes. Throws Error{usage} for an unknown name.
NetSpec make_model(std::string_view name, Extent input, int classes);

}  // namespace cifar_mpi::model
