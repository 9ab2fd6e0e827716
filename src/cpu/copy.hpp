#pragma once

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

}  // namespace cifar_mpi::cpu
