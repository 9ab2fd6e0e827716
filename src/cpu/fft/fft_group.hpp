#pragma once

#include "cpu/affine.hpp"
#include "cpu/planning.hpp"

namespace cifar_mpi::cpu {

/// The group of a convolution by FFT, with the ReLU behind it; `place` is of the whole batch, its format that of images
/// on both sides. Null where there is no transform for the layer, where the planning's method is direct, where it is automatic and
/// the direct kernels are faster, and for a first layer that reads its image channel by channel.
PlannedGroupPtr plan_fft_group(Planning& planning, const model::Conv2d& layer, const AffinePlace& place);

}  // namespace cifar_mpi::cpu
