#pragma once

#include "cifar_mpi/model/layer.hpp"
#include "cpu/affine.hpp"

namespace cifar_mpi::cpu {

/// Formats, kernels and weight copies of a linear layer over [batch, in.count()], the NHWC input flattened,
/// so `place.src` must be NHWC. Throws dnnl::error.
Affine plan_linear(const Dnnl& dnnl, const model::Linear& layer, const AffinePlace& place);

/// The weights' logical order, [in, out].
Desc linear_logical_weights(const model::Linear& layer, const Extent& in);

}  // namespace cifar_mpi::cpu
