#pragma once

#include <vector>

#include "train/step.hpp"

/// What the programs of a step are put together from.
namespace cifar_mpi::train {

/// A step of one batch of all ranks.
engine::TrainBinding bind_step(const StepContext& context);

/// Null where gradients are not clipped: nobody then asks for their norm.
double* gradient_norm(const StepContext& context);

/// The update, and the running statistics, that belong to `train`.
engine::UpdateBinding bind_update(const StepContext& context, const engine::TrainBinding& train,
                                  const comm::ParamSpan& span, double* decay_sum);
engine::RunningBinding bind_running(const StepContext& context, const engine::TrainBinding& train);

/// The tasks of the run's optimizer on the span of `update`, in order.
std::vector<engine::Task> plan_update(const StepContext& context, const engine::UpdateBinding& update);

/// Control block to last backward task of the rank's batch in `step` of the `steps` that a replay takes.
std::vector<engine::Task> compute_tasks(const StepContext& context, engine::TrainBinding binding,
                                        int step = 0, int steps = 1);

/// What all memory of a run is, for the runner that watches it.
std::vector<engine::Bytes> regions_of(const StepContext& context);

/// Blocks of the size of the trained parameters that an averaging exchanges: their moves, and each row of the optimizer.
int exchanged_blocks(const TrainConfig& config);

}  // namespace cifar_mpi::train
