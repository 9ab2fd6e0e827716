#pragma once

#include <vector>

#include "cifar_mpi/engine/backend.hpp"
#include "cifar_mpi/engine/layout.hpp"
#include "cifar_mpi/engine/program.hpp"

/// The first and the last task of a training step.
namespace cifar_mpi::cpu {

/// Zeroes the control block and sets its words for requests to 1 where this rank asks (`requests`, bits of
/// engine::Request, not null), so that the sum over the ranks counts the requests.
///
/// The slot of this rank carries its facts: the compute time of the step before (this step's is not over when
/// the first bucket leaves) and the parameter hash. Also notes when the step began.
engine::Task plan_control(const engine::TrainBinding& binding);

/// The last compute task of a step: notes how long the step took since plan_control's task.
engine::Task plan_compute_time(engine::RankFacts* facts);

/// Writes records[record_place(step, steps)], of the last step of a replay, from the summed control block, then moves the step counter on. If the
/// summed loss or the decay term is not finite the record says `applied = false` and the counter stays.
///
/// cross_entropy = loss_sum / global_batch, decay_term = Σ decay_sums; the slots are those of the control
/// block. `records` is sized here (kRecordRing entries, slots too), so that a replay allocates nothing;
/// it must outlive the task and not be resized after.
engine::Task plan_advance(const engine::AdvanceBinding& binding, std::vector<engine::StepRecord>& records);

}  // namespace cifar_mpi::cpu
