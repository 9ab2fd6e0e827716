#pragma once

#include <vector>

#include "cifar_mpi/step/step.hpp"

/// The parts of a step's programs.
namespace cifar_mpi::step {

/// A step of one batch of all ranks.
engine::TrainBinding bind_step(const StepContext& context);

/// Null if gradients are not clipped, since their norm is then unused.
double* gradient_norm(const StepContext& context);

/// The update, and the running statistics, that belong to `train`.
engine::UpdateBinding bind_update(const StepContext& context, const engine::TrainBinding& train,
                                  const comm::ParamSpan& span, double* decay_sum);
engine::RunningBinding bind_running(const StepContext& context, const engine::TrainBinding& train);

/// The tasks of the run's optimizer on the span of `update`, in order.
std::vector<engine::Task> plan_update(const StepContext& context, const engine::UpdateBinding& update);

/// From the control block to the last backward task of the rank's batch, in `step` of the `steps` of a
/// replay.
std::vector<engine::Task> compute_tasks(const StepContext& context, engine::TrainBinding binding,
                                        int step = 0, int steps = 1);

/// Names of all memory of a run, for the runner that audits it.
std::vector<engine::Bytes> regions_of(const StepContext& context);

/// Blocks, each as large as the trained parameters, that an averaging exchanges: the moves, and each row of
/// the optimizer.
int exchanged_blocks(const config::TrainConfig& config);

}  // namespace cifar_mpi::step
