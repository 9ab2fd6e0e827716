#pragma once

#include "cifar_mpi/engine/backend.hpp"

namespace cifar_mpi::cpu {

/// The kernels for a network, for the number of OpenMP threads that is set now. Throws Error{usage} when
/// `spec.batch` is below 1. `spec.precision` is fp32 or bf16.
engine::TowerKernels plan_kernels(const engine::TowerSpec& spec);

}  // namespace cifar_mpi::cpu
