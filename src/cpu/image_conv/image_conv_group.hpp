#pragma once

#include "cpu/planning.hpp"

namespace cifar_mpi::cpu {

/// The group of a convolution that reads images of few channels, with the ReLU and the max-pooling behind it, by the own
/// kernels of image_kernels.hpp. Null where the chain does not stand so, where the planning's method is direct, and where the
/// rule finds no kernels that are faster than oneDNN's.
PlannedGroupPtr plan_image_conv_group(Planning& planning, const engine::Chain& chain);

}  // namespace cifar_mpi::cpu
