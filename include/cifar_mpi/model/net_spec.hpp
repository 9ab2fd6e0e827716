#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "cifar_mpi/base/shape.hpp"
#include "cifar_mpi/model/layer.hpp"
#include "cifar_mpi/model/param.hpp"

/// A network as a graph: operations over values.
namespace cifar_mpi::model {

/// The output of an operation, or the image, as an index into NetSpec::values.
struct Value {
  std::size_t id = 0;
  bool operator==(const Value&) const = default;
};

/// Floating-point operations of one pass over one image (a multiply-add is two).
struct Flops {
  double nominal = 0.0;   ///< every tap of every kernel, as frameworks count
  double in_image = 0.0;  ///< only taps that fall inside the image; what a CPU kernel must do
};

/// One layer at its place in the graph.
struct Operation {
  std::string name;  ///< the layer's, or "relu 3"
  Layer layer;
  std::vector<Value> inputs;  ///< in the order of the layer's formula
  Value output;
  std::string_view kind;      ///< "Conv2d"
  Flops forward;              ///< of a forward pass
  std::vector<Param> params;  ///< weights, then biases; scale, bias, mean, variance; see ParamTable

  /// Whether a parameter trains in the step after `done`.
  bool trains(std::uint64_t done = 0) const;
};

/// A network with all shapes inferred; made by a NetBuilder. A value may have any number of readers, and an
/// operation may read any value before it.
struct NetSpec {
  std::string name;
  Extent input;  ///< of the image, which is value 0
  int classes = 0;
  std::vector<Operation>
      operations;              ///< each after those whose outputs it reads; SoftmaxCrossEntropy is last
  std::vector<Extent> values;  ///< by Value::id

  const Extent& extent(Value value) const { return values[value.id]; }
  const Extent& input_of(std::size_t operation) const { return extent(operations[operation].inputs.front()); }
  const Extent& output_of(std::size_t operation) const { return extent(operations[operation].output); }
  /// What the loss reads.
  Value logits() const { return operations.back().inputs.front(); }
};

/// For each value, the operations that read it; one that reads it twice appears twice.
std::vector<std::vector<std::size_t>> readers_of(const NetSpec& net);

/// For each value, whether backward needs its gradient in the step after `done`: a parameter that trains precedes it.
std::vector<bool> wants_gradient(const NetSpec& net, std::uint64_t done = 0);

/// The layer that gives the logits, when it is Linear: the only one whose parameters depend on the number of
/// classes. Else an empty name.
std::string_view classifier_of(const NetSpec& net);

/// The training step after `done`, of one image: forward, weight gradients, and the data gradients that backward needs.
Flops training_flops(const NetSpec& net, std::uint64_t done = 0);

/// A model of the catalog.
struct ModelInfo {
  std::string_view name;
  std::string_view sentence;  ///< a description for users
};
std::vector<ModelInfo> catalog();

/// The named model for images of `input` and `classes` classes. Throws Error{usage} for an unknown name.
NetSpec make_model(std::string_view name, Extent input, int classes);

/// A table like that of Keras: name, operation, output shape, parameters, MFLOP of a forward pass,
/// a line per operation; then the totals.
std::string summary(const NetSpec& net);

}  // namespace cifar_mpi::model
