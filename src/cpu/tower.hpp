#pragma once

#include <memory>

#include "cifar_mpi/engine/backend.hpp"

namespace cifar_mpi::cpu {

/// Plans a network (see planner.hpp) for the number of OpenMP threads that is set now. Throws Error{usage}
/// when a layer cannot be planned or `spec.batch` is below 1. `spec.precision` is fp32 or bf16.
std::unique_ptr<engine::Tower> plan_tower(const engine::TowerSpec& spec);

}  // namespace cifar_mpi::cpu
