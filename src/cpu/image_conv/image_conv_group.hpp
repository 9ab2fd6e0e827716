#pragma once

#include "cpu/planning.hpp"

namespace cifar_mpi::cpu {

/// The group of a convolution that reads images of few channels, with its ReLU and max-pooling, by the
/// kernels of image_kernels.hpp. Null if the chain has other layers, the method is direct, or the rule finds
/// no kernels faster than oneDNN's.
PlannedGroupPtr plan_image_conv_group(Planning& planning, const engine::Chain& chain);

}  // namespace cifar_mpi::cpu
