#pragma once

#include "cpu/stage.hpp"

namespace cifar_mpi::cpu {

/// Kernels of a max-pooling with SAME padding from `src` in any format to an output that keeps it. The
/// gradient goes to one place of each window; the forward kernel leaves which in the workspace. Throws
/// dnnl::error.
Pool plan_pool(const Dnnl& dnnl, const model::MaxPool& layer, int batch, const Desc& src, const Extent& in,
               const Extent& out, dnnl::memory::data_type type);

}  // namespace cifar_mpi::cpu
