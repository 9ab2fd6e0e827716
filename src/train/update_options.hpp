#pragma once

#include <string>

#include "cifar_mpi/base/run_fingerprint.hpp"
#include "cifar_mpi/train/config.hpp"

/// The options of the ways to update, but for those of the all-reduce.
namespace cifar_mpi::train {

/// The shortest text that reads back as the same double.
std::string exact(double value);

/// Throws Error{usage}.
[[noreturn]] void refuse(const std::string& text);

/// Throws Error{usage} naming the option, also for one of a way that was not chosen.
void check_update_options(const TrainConfig& config);

/// Where local steps begin, and that the run ends with an averaging. Throws Error{usage} when it does not.
void resolve_local_steps(const TrainConfig& config, double samples, Sizes& sizes);

/// What makes a run this run and no other.
void add_update_options(RunFingerprint& items, const TrainConfig& config);

}  // namespace cifar_mpi::train
