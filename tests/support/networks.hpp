#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/model/net_builder.hpp"

namespace cifar_mpi::model {

/// A network in which each layer reads the output of the previous one; the last is SoftmaxCrossEntropy.
inline NetSpec make_net(std::string name, Extent input, int classes, const std::vector<Layer>& layers) {
  NetBuilder net(std::move(name), input, classes);
  Value x = net.image();
  for (std::size_t i = 0; i + 1 < layers.size(); ++i) x = net.append(layers[i], {x});
  return net.softmax_cross_entropy(x);
}

}  // namespace cifar_mpi::model

namespace cifar_mpi::test {

/// Two convolutions of one value added up, the later one after a ReLU whose mask must not reach the gradient of
/// the other; then a block with a skip around it, and a ReLU that two layers read.
inline model::NetSpec network_with_sums() {
  model::NetBuilder net("sums", {6, 5, 3}, 7);
  const model::Value plain = net.conv(net.image(), {.name = "c1", .out_channels = 8, .kernel = 3});
  const model::Value masked = net.relu(net.conv(net.image(), {.name = "c2", .out_channels = 8, .kernel = 3}));
  const model::Value sum = net.add(plain, masked, {"s1"});
  const model::Value twice = net.relu(net.conv(sum, {.name = "c3", .out_channels = 8, .kernel = 3}));
  const model::Value inner = net.conv(twice, {.name = "c4", .out_channels = 8, .kernel = 3});
  const model::Value block = net.relu(net.add(net.add(inner, twice, {"s2"}), sum, {"s3"}));
  return net.softmax_cross_entropy(net.linear(net.max_pool(block, {"p1", 2, 2}), {"l1", 7}));
}

/// Frozen layers with a ReLU, after a trained one whose gradient their mask decides.
inline model::NetSpec network_with_frozen_layers() {
  model::NetBuilder net("frozen", {6, 5, 3}, 7);
  model::Value x = net.conv(net.image(), {.name = "c1", .out_channels = 8, .kernel = 3});
  x = net.relu(net.conv(x, {.name = "c2", .out_channels = 8, .kernel = 3, .frozen = true}));
  x = net.relu(net.linear(x, {.name = "l1", .outputs = 20, .frozen = true}));
  return net.softmax_cross_entropy(net.linear(x, {"l2", 7}));
}

/// Residual blocks of both kinds: after a shortcut without parameters, and after a projection; BatchNorm with and
/// without a ReLU, and frozen; strides, also of an even and a 1x1 kernel.
inline model::NetSpec network_with_blocks(int channels) {
  using model::Value;
  model::NetBuilder net("blocks", {9, 8, 3}, 7);
  const auto conv = [&](Value x, const char* name, int outputs, int kernel, int stride) {
    return net.conv(
        x, {.name = name, .out_channels = outputs, .kernel = kernel, .stride = stride, .with_bias = false});
  };
  const auto bn = [&](Value x, const char* name) { return net.batch_norm(x, {.name = name}); };
  Value x = net.relu(bn(conv(net.image(), "c1", channels, 3, 1), "bn1"));
  Value y = net.relu(bn(conv(x, "c2", 2 * channels, 3, 2), "bn2"));
  y = bn(conv(y, "c3", 2 * channels, 3, 1), "bn3");
  x = net.relu(net.add(y, net.shortcut(x, {"shortcut", 2 * channels, 2}), {"sum1"}));
  y = net.batch_norm(conv(x, "c4", channels, 2, 2), {.name = "bn4", .frozen = true});
  x = net.relu(net.add(y, bn(conv(x, "projection", channels, 1, 2), "bn5"), {"sum2"}));
  x = net.global_avg_pool(bn(x, "bn6"), {"mean"});
  return net.softmax_cross_entropy(net.linear(x, {"l1", 7}));
}

/// The ways in which layers may follow each other; the second convolution has `channels`,
/// by default a number that suits the libraries of GPUs.
inline std::vector<model::NetSpec> orders_of_layers(int channels = 24) {
  using namespace model;
  const Conv2d c1{"c1", 16, 3}, c2{"c2", channels, 5}, c3{"c3", 8, 2};
  const MaxPool p1{"p1", 3, 2}, p2{"p2", 2, 2};
  const LocalResponseNorm n1{"n1", 4, 1.0f, 0.01f, 0.75f}, n2{"n2", 2, 2.0f, 0.1f, 0.5f};
  const Linear l1{"l1", 33}, l2{"l2", 7}, l10{"l2", 10};
  const SoftmaxCrossEntropy loss;
  return {
      make_net("tutorial order", {12, 12, 3}, 10,
               {c1, Relu{}, p1, n1, c2, Relu{}, n2, p2, l1, Relu{}, l10, loss}),
      make_net("conv without relu", {7, 9, 3}, 7, {c1, p1, c2, l2, loss}),
      make_net("conv, relu, conv, relu, linear", {7, 9, 1}, 7, {c1, Relu{}, c2, Relu{}, l2, loss}),
      make_net("conv, relu, pool, linear", {7, 9, 1}, 7, {c1, Relu{}, p1, l2, loss}),
      make_net("conv, relu, pool, conv", {7, 9, 4}, 7, {c1, Relu{}, p1, c2, Relu{}, p2, l2, loss}),
      make_net("two pools after a relu", {9, 7, 2}, 7, {c1, Relu{}, p2, p1, n1, l2, loss}),
      make_net("pool before relu", {8, 8, 3}, 7, {c1, p1, Relu{}, c2, n1, Relu{}, l2, loss}),
      make_net("even kernels, relu twice", {6, 5, 3}, 7,
               {c3, Relu{}, Relu{}, c2, Relu{}, n2, l1, Relu{}, Relu{}, l2, loss}),
      make_net("an even kernel after another layer", {7, 5, 3}, 7, {c2, Relu{}, p1, n2, c3, l2, loss}),
      make_net("linear alone", {5, 3, 3}, 7, {l2, loss}),
      make_net("linear first", {5, 3, 3}, 7, {l1, Relu{}, l2, Relu{}, loss}),
      make_net("layers before the first parameters", {8, 6, 3}, 7,
               {n2, p2, Relu{}, c1, Relu{}, n1, l2, loss}),
      make_net("a convolution gives the logits", {4, 4, 3}, 7,
               {c1, Relu{}, p1, p2, Conv2d{"c9", 7, 1}, loss}),
      make_net("logits after relu and pools", {4, 4, 2}, 16, {c1, Relu{}, p1, p2, loss}),
      network_with_sums(),
  };
}

}  // namespace cifar_mpi::test
