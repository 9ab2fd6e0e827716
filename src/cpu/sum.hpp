#pragma once

#include <cstddef>
#include <string>

#include "cifar_mpi/engine/program.hpp"

namespace cifar_mpi::cpu {

/// dst[i] = a[i] + b[i] for i < n, or a[i] where b is null; dst may be a or b. Bits do not depend on the
/// number of threads.
engine::Task plan_sum(std::string name, float* dst, const float* a, const float* b, std::size_t n);

/// Likewise dst[i] = share · (a[i] − b[i]), or share · a[i] where b is null.
engine::Task plan_share(std::string name, float* dst, const float* a, const float* b, float share,
                        std::size_t n);

}  // namespace cifar_mpi::cpu
