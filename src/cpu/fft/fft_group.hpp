#pragma once

#include "cpu/affine.hpp"
#include "cpu/planning.hpp"

namespace cifar_mpi::cpu {

/// The group of a convolution by FFT, with the ReLU after it; `place` describes the whole batch, its format
/// the images on both sides. Null if there is no transform for the layer, the method is direct, the method is
/// automatic and direct kernels are faster, or the layer is the first one and reads NCHW images.
PlannedGroupPtr plan_fft_group(Planning& planning, const model::Conv2d& layer, const AffinePlace& place);

}  // namespace cifar_mpi::cpu
