#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cifar_mpi/optim/schedule.hpp"
#include "cifar_mpi/report/metrics.hpp"
#include "cifar_mpi/report/progress_view.hpp"
#include "cifar_mpi/run/checkpoint.hpp"
#include "cifar_mpi/step/plan.hpp"
#include "cifar_mpi/step/step.hpp"
#include "report/tensorboard.hpp"
#include "run/run_checkpoints.hpp"

/// A run's description of itself: in metrics.jsonl and the log, for TensorBoard, in checkpoints, and where it diverged.
namespace cifar_mpi::train {

/// The event of a start that resumes after `step` steps when metrics.jsonl already reached `reached`; also
/// says how the previous start ended.
report::RunEvent start_event(const step::Plan& plan, std::uint64_t step, std::uint64_t reached,
                             const std::string& last_end);

/// The sentence of a start that begins after `step` steps and repeats those up to `reached`; with the reason, if
/// no other line shows a checkpoint.
std::string repeat_text(std::uint64_t step, std::uint64_t reached);

/// Collective; between steps, after so many. Throws an AgreedError{diverged} unless what a checkpoint would hold is finite.
///
/// A loss can be finite where weights are not: ReLU makes zeros of negative infinities, and averages are in no loss.
void require_finite(const step::Plan& plan, const step::Device& device, const step::StateTable& state,
                    std::uint64_t steps);

/// Throws an AgreedError{diverged} if this replay was not applied or its loss is hopeless. `in_step`: the record has sums over
/// all ranks.
void require_converging(const engine::Replay& replay, const engine::StepRecord& record, bool in_step);

/// Rank 0 logs the best checkpoint of a run that keeps it, after so many steps, and at the end of a run its
/// steps; `no_samples`: why none was recorded; `resumed` as for the verdict. Collective.
void log_best(const step::Plan& plan, run::RunCheckpoints& checkpoints, std::uint64_t steps,
              report::ProgressView& view);
void log_summary(const step::Plan& plan, const engine::Backend& backend, report::ProgressView& view,
                 const char* no_samples, std::uint64_t resumed);

/// "node1 x 4, node2 x 4", in the order of the ranks; cut where it gets long.
std::string hosts_text(const std::vector<std::string>& hosts);

/// The settings that identify the run, without its dataset, and those it runs with.
RunFingerprint hparams(const step::Plan& plan);

/// The weight decay terms of the loss, by layer in forward order, for the current weights, added in double;
/// none if decay is not part of the loss. A pass over the weights in backend memory, between steps.
std::vector<report::WeightLoss> weight_losses(const step::Plan& plan, const step::Device& device,
                                              const step::StateTable& state);

/// A sentence on the layers whose outputs the summaries lack, and why; empty if none.
std::string unseen_outputs(const model::NetSpec& net, const lower::Tower& tower);

/// Seconds that this rank spent in collectives since its start; negative if its runner cannot measure them or
/// there is only one rank.
double communicated_seconds(const engine::Runner& step);

/// The state after `step` steps in a checkpoint's form, copied from the device; between steps.
run::Checkpoint snapshot(const step::Plan& plan, const step::Device& device, const step::StateTable& state,
                         const optim::Schedule& schedule, std::uint64_t step,
                         std::optional<double> test_accuracy);

}  // namespace cifar_mpi::train
