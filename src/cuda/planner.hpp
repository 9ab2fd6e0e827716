#pragma once

#include "cifar_mpi/engine/backend.hpp"
#include "cuda/stage.hpp"

namespace cifar_mpi::cuda {

/// Lays the layers of a network onto a chain of stages; needs no device.
///
/// A ReLU joins the convolution or linear layer before it. Its mask moves into the pooling or normalization
/// behind it, max(relu(x)) = relu(max(x)). Parameters lie as TensorFlow has them; the weights of a
/// convolution are followed by zero rows up to a multiple of kPatchGroup. Throws Error{usage} naming the
/// layer when it is of a size that no kernel here takes, or when the batch is below 1.
NetPlan plan_network(const engine::TowerSpec& spec);

}  // namespace cifar_mpi::cuda
