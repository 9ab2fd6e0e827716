#pragma once

#include <vector>

#include "cifar_mpi/engine/backend.hpp"
#include "cifar_mpi/engine/layout.hpp"
#include "cifar_mpi/engine/program.hpp"

/// The first and the last task of a training step.
namespace cifar_mpi::cpu {

/// Zeroes the control block and sets its request words to 1 for requests of this rank (`requests`, bits of
/// engine::Request, not null), so that the sum over the ranks counts them.
///
/// The slot of this rank carries the parameter hash and the compute time of the previous step, because this
/// step is not over when the first bucket leaves. The task also stores the time when the step began.
engine::Task plan_control(const engine::TrainBinding& binding);

/// The last compute task of a step: stores the time since plan_control's task.
engine::Task plan_compute_time(engine::RankFacts* facts);

/// Writes records[record_place(step, steps)], of the last step of a replay, from the summed control block,
/// then advances the step counter. If the summed loss or the decay term is not finite, the record says
/// `applied = false` and the counter stays.
///
/// cross_entropy = loss_sum / global_batch, decay_term = Σ decay_sums; the slots are copied from the control
/// block. `records` is resized here (kRecordRing entries with their slots), so that a replay allocates
/// nothing; it must outlive the task and keep its size.
engine::Task plan_advance(const engine::AdvanceBinding& binding, std::vector<engine::StepRecord>& records);

}  // namespace cifar_mpi::cpu
