#pragma once

#include "cifar_mpi/base/run_fingerprint.hpp"
#include "cifar_mpi/step/plan.hpp"

/// Settings that are resolved at start and affect bits.
namespace cifar_mpi::train {

/// All of them; what `auto` chose stands there as the choice.
RunFingerprint resolved_settings(const step::Plan& plan, const comm::Update& update);

/// What is taken over from a checkpoint meets the checks of the options that it stands for. Throws
/// Error{checkpoint} naming what no run of this program had: `content_hash` finds damage, not forgery.
void require_possible(const run::Progress& progress, const std::string& path,
                      const config::TrainConfig& config, const config::Sizes& sizes);

/// Takes over what the checkpoint's run had resolved wherever this one's user left it automatic: the
/// precision and the way of convolutions, and on the same number of ranks the threads and the all-reduce. Sets `adopted`.
void adopt(step::Plan& plan, const RunFingerprint& resolved);

}  // namespace cifar_mpi::train
