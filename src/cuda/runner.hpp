#pragma once

#include <memory>
#include <vector>

#include "cifar_mpi/engine/runner.hpp"
#include "cuda/device.hpp"

namespace cifar_mpi::cuda {

/// A runner for programs of this backend: one stream per lane, events for marks; the device outlives it.
///
/// serial waits for every task and measures what it takes on the device, behind a delay kernel (see
/// control.hpp). lanes enqueues the list in each replay. graph does so in the first call, which loads every
/// kernel and opens NCCL's connections; later ones start a graph of as many replays as they are asked for, captured
/// when that number comes first; so once more for replays with observers. NCCL wants the same captures and launches on all
/// ranks of a communicator, so the calls of this interface must be the same on all of them, in the same order. A call returns when its replays are
/// enqueued and those of the call before are done; the records of finished replays then lie where advance_task was
/// told, so no two calls in a row may be for more than kRecordRing. audit is serial and watches `regions`; see
/// engine::RunnerKind. A program with tasks of the host (engine::Task::poll) is
/// no graph: `graph` is `lanes` then, in which the call returns when these tasks are done and all behind them is
/// enqueued. Throws std::logic_error when the program is not finalized.
std::unique_ptr<engine::Runner> make_runner(Device& device, engine::StepProgram program,
                                            engine::RunnerKind kind, std::vector<engine::Bytes> regions);

}  // namespace cifar_mpi::cuda
