#pragma once

#include <functional>
#include <memory>

#include "cifar_mpi/engine/kernels.hpp"

namespace cifar_mpi::cuda {

/// `layer` and the group after its ReLU as one group, which takes in the ReLU, and with `leaves_bias` the
/// layer's biases as the tail's only parameter. Values between them are in this group's memory.
std::unique_ptr<engine::Group> join_tail(std::unique_ptr<engine::Group> layer,
                                         std::unique_ptr<engine::Group> tail,
                                         std::function<bool()> leaves_bias);

}  // namespace cifar_mpi::cuda
