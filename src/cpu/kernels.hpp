#pragma once

#include "cifar_mpi/engine/backend.hpp"

namespace cifar_mpi::cpu {

/// The kernels for a network, planned for the current number of OpenMP threads. Throws Error{usage} when
/// `spec.batch` is below 1. `spec.precision` is fp32 or bf16, `conv_threads` as in BackendOptions.
engine::TowerKernels plan_kernels(const engine::TowerSpec& spec, int conv_threads);

}  // namespace cifar_mpi::cpu
