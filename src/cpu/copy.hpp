#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cifar_mpi/engine/backend.hpp"

namespace cifar_mpi::cpu {

engine::Task plan_copy(std::string name, const std::vector<engine::CopyBinding>& bindings);

/// See SumBinding. Bits do not depend on the number of threads.
engine::Task plan_sum(std::string name, const engine::SumBinding& binding);

/// ++*counter
engine::Task plan_increment(std::string name, std::uint64_t* counter);

/// dst[i] = a[i] + b[i] over `count` values: fp32, or bf16 that is added in fp32 and rounded once. dst may be
/// a or b. Bits do not depend on the number of threads.
engine::Task plan_add(std::string name, std::size_t count, engine::Precision precision, std::byte* dst,
                      const std::byte* a, const std::byte* b);

}  // namespace cifar_mpi::cpu
