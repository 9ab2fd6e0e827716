#pragma once

#include "cifar_mpi/train/self_check.hpp"
#include "train/plan.hpp"

namespace cifar_mpi::train {

/// The platform that a run takes: `asked`, when it proves itself here or has done so before by the record in the run
/// directory; else what `check` has instead. Says why, writes the record, and notes the outcome in `plan`, for
/// checkpoints. `check` null: the device is taken on trust. Collective; throws AgreedError{device} where a device fails
/// and there is nothing instead.
comm::PlatformFactory proven_platform(Plan& plan, const comm::PlatformFactory& asked, const SelfCheck* check);

}  // namespace cifar_mpi::train
