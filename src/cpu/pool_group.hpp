#pragma once

#include <optional>

#include "cpu/planning.hpp"
#include "cpu/pool.hpp"

namespace cifar_mpi::cpu {

struct PlannedPool {
  Pool pool;
  dnnl::memory::format_tag format;  ///< of both sides
};

/// The max-pooling of `batch` images with the format of `src`; empty if that is none of NHWC, NCHW and blocks
/// of 8 and 16 channels. Throws Error{usage} for a window that is too large.
std::optional<PlannedPool> plan_pool(const model::MaxPool& layer, int batch, const Desc& src,
                                     const Extent& in);

/// Its kernels in the text of the plan.
void note_pool(Planning& planning, const Pool& pool);

}  // namespace cifar_mpi::cpu
