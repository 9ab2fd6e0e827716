#pragma once

#include <set>
#include <string>

#include "cifar_mpi/model/net_spec.hpp"

namespace cifar_mpi::model {

/// Makes a network operation by operation, so that a model reads like its formula:
///
///   NetBuilder net("residual", {32, 32, 3}, 10);
///   const Value x = net.relu(net.conv(net.image(), {.name = "a", .out_channels = 16, .kernel = 3}));
///   const Value y = net.add(net.conv(x, {.name = "b", .out_channels = 16, .kernel = 3}), x, {"sum"});
///   return net.softmax_cross_entropy(net.linear(y, {.name = "c", .outputs = 10}));
///
/// Shapes are inferred at once: each function throws Error{usage}, naming the operation, when it does not fit.
class NetBuilder {
 public:
  NetBuilder(std::string name, Extent image, int classes);

  Value image() const { return {0}; }
  Value conv(Value x, Conv2d layer) { return append(std::move(layer), {x}); }
  Value relu(Value x) { return append(Relu{}, {x}); }
  Value silu(Value x) { return append(Pointwise{PointwiseKind::silu}, {x}); }
  Value gelu(Value x) { return append(Pointwise{PointwiseKind::gelu}, {x}); }
  Value scale(Value x, float factor) { return append(Pointwise{PointwiseKind::scale, factor}, {x}); }
  Value max_pool(Value x, MaxPool layer) { return append(std::move(layer), {x}); }
  /// The largest value of each channel over the image: [1, 1, channels].
  Value global_max_pool(Value x, std::string name);
  Value lrn(Value x, LocalResponseNorm layer) { return append(std::move(layer), {x}); }
  Value batch_norm(Value x, BatchNorm layer) { return append(std::move(layer), {x}); }
  Value global_avg_pool(Value x, GlobalAvgPool layer) { return append(std::move(layer), {x}); }
  Value shortcut(Value x, Shortcut layer) { return append(std::move(layer), {x}); }
  Value linear(Value x, Linear layer) { return append(std::move(layer), {x}); }
  Value add(Value a, Value b, Add layer) { return append(std::move(layer), {a, b}); }
  /// Any of these, for lists of layers.
  Value append(Layer layer, std::vector<Value> inputs);

  /// Ends the network. Throws Error{usage} when `logits` is not one value per class, or when a value has no reader.
  NetSpec softmax_cross_entropy(Value logits);

 private:
  NetSpec net_;
  std::set<std::string> names_;  ///< of layers with parameters
};

}  // namespace cifar_mpi::model
