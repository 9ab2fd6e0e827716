#pragma once

#include <memory>
#include <vector>

#include "cifar_mpi/engine/runner.hpp"
#include "cuda/device.hpp"

namespace cifar_mpi::cuda {

/// A runner for programs of this backend: one stream per lane, events for marks; the device outlives it.
///
/// serial waits for every task and measures it. lanes enqueues the list in each replay. graph does so in the
/// first replay, which loads every kernel and opens NCCL's connections, captures the list before the second,
/// and from then on starts the captured graph. A replay returns when it is enqueued and the one before it is
/// done; the records of finished replays then lie where advance_task was told. audit is serial and watches
/// `regions`; see engine::RunnerKind. Throws std::logic_error when the program is not sealed.
std::unique_ptr<engine::Runner> make_runner(Device& device, engine::StepProgram program,
                                            engine::RunnerKind kind, std::vector<engine::Bytes> regions);

}  // namespace cifar_mpi::cuda
