#pragma once

#include "cifar_mpi/comm/world.hpp"
#include "cuda/device.hpp"

namespace cifar_mpi::cuda {

/// Logs who has which GPU, and lets all ranks fail together, with Error{device}, where two have one and may not.
/// Collective.
void compare_devices(const Device& device, const comm::World& world, bool share);

}  // namespace cifar_mpi::cuda
