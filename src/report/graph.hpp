#pragma once

#include <string>

#include "cifar_mpi/model/net_spec.hpp"

namespace cifar_mpi::report {

/// The network as TensorFlow's GraphDef, which TensorBoard draws: the image and the labels, a node for each operation
/// with its kind and the shape of its output, and a node for each parameter, in a scope with the name of its operation.
/// An unknown number of images is -1. Names have only characters that TensorFlow allows, and are unique.
std::string graph_def(const model::NetSpec& net);

}  // namespace cifar_mpi::report
