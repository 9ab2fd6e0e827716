#pragma once

#include <string>

#include "cifar_mpi/engine/backend.hpp"

namespace cifar_mpi::cpu {

/// See SumBinding. Bits do not depend on the number of threads.
engine::Task plan_sum(std::string name, const engine::SumBinding& binding);

}  // namespace cifar_mpi::cpu
