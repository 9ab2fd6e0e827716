#pragma once

#include <memory>
#include <vector>

#include "cifar_mpi/engine/runner.hpp"
#include "cuda/device.hpp"

namespace cifar_mpi::cuda {

/// A runner for programs of this backend: one stream per lane, events for marks. The device must outlive it.
///
///   serial  waits for every task and measures its time on the device, as a Gate leaves it (control.hpp)
///   lanes   enqueues the list in each replay
///   graph   does the same in the first call, which loads every kernel and opens NCCL's connections. Later calls
///           launch a graph of as many replays as they are asked for, which is captured when that number comes first.
///           Replays with observers have graphs of their own.
///   audit   is serial and watches `regions`; see engine::RunnerKind
///
/// A program with host tasks (engine::Task::poll) cannot be a graph, so `graph` means `lanes` for it. A call then
/// returns when its host tasks are done and everything after them is enqueued; otherwise, when its replays are enqueued
/// and those of the previous call are done. The records of finished replays are then where advance_task was asked to
/// put them, so two calls in a row must not have more than kRecordRing replays together.
///
/// NCCL requires the same captures and launches on all ranks of a communicator, so all ranks must make the same calls of
/// this interface in the same order. Throws std::logic_error when the program is not finalized.
std::unique_ptr<engine::Runner> make_runner(Device& device, engine::StepProgram program,
                                            engine::RunnerKind kind, std::vector<engine::Bytes> regions);

}  // namespace cifar_mpi::cuda
