#pragma once

#include <cstddef>
#include <string>

#include "cifar_mpi/engine/backend.hpp"

namespace cifar_mpi::cpu {

/// dst[i] = a[i] + b[i] over `count` values: fp32, or bf16 that is added in fp32 and rounded once. dst may be
/// a or b. Bits do not depend on the number of threads.
engine::Task plan_add(std::string name, std::size_t count, engine::Precision precision, std::byte* dst,
                      const std::byte* a, const std::byte* b);

}  // namespace cifar_mpi::cpu
