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
