#pragma once

#include <functional>
#include <memory>

#include "cifar_mpi/engine/kernels.hpp"

namespace cifar_mpi::cuda {

/// `layer` and the group behind its ReLU as one group, which takes in the ReLU, and the biases of the layer where
/// `leaves_bias` says so: then the tail gets them as its only parameter. What is between them is memory of this group.
std::unique_ptr<engine::Group> join_tail(std::unique_ptr<engine::Group> layer,
                                         std::unique_ptr<engine::Group> tail,
                                         std::function<bool()> leaves_bias);

}  // namespace cifar_mpi::cuda
