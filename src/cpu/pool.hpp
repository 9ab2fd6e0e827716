#pragma once

#include "cifar_mpi/model/layer.hpp"
#include "cpu/planning.hpp"

namespace cifar_mpi::cpu {

struct Pool {
  PoolKernels kernels;
  Desc workspace;
};

/// Kernels of a max-pooling with SAME padding from `src` in any format to an output that keeps it. The
/// gradient goes to one place of each window; the forward kernel leaves which in the workspace. Throws
/// dnnl::error.
Pool plan_pool(const Dnnl& dnnl, const model::MaxPool& layer, int batch, const Desc& src, const Extent& in,
               const Extent& out, dnnl::memory::data_type type);

/// Its kernels in the plan's text.
void note_pool(Planning& planning, const std::string& name, const Pool& pool);

}  // namespace cifar_mpi::cpu
