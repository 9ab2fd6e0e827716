#pragma once

#include <cstdint>
#include <optional>

#include "cifar_mpi/optim/schedule.hpp"
#include "cifar_mpi/run/checkpoint.hpp"
#include "train/state.hpp"

namespace cifar_mpi::train {

/// The state after `step` steps as a checkpoint has it, copied out of the device; between steps.
run::Checkpoint snapshot(const SessionState& state, const optim::Schedule& schedule, std::uint64_t step,
                         std::optional<double> test_accuracy);

}  // namespace cifar_mpi::train
