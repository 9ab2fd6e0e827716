#pragma once

#include "cpu/affine.hpp"

namespace cifar_mpi::cpu {

/// Formats, kernels and weight copies of a convolution with SAME padding. Throws dnnl::error.
Affine plan_conv(const Dnnl& dnnl, const model::Conv2d& layer, const AffinePlace& place);

/// The weights' logical order, [k, k, in, out].
Desc conv_logical_weights(const model::Conv2d& layer, const Extent& in);

}  // namespace cifar_mpi::cpu
