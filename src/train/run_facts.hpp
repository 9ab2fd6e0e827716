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

/// What a run tells of itself: in metrics.jsonl and the log, to TensorBoard, and in checkpoints.
namespace cifar_mpi::train {

/// The event with which a start goes on after `step` steps, where metrics.jsonl had come to `reached` before, and the
/// start before it had ended so.
report::RunEvent start_event(const step::Plan& plan, std::uint64_t step, std::uint64_t reached,
                             const std::string& last_end);

/// Rank 0's lines on the best checkpoint of a run that keeps it, after so many steps, and at the end of a run on its steps;
/// `no_samples`: why none was recorded. Collective.
void log_best(const step::Plan& plan, run::RunCheckpoints& checkpoints, std::uint64_t steps,
              report::ProgressView& view);
void log_summary(const step::Plan& plan, const engine::Backend& backend, report::ProgressView& view,
                 const char* no_samples);

/// "node1 x 4, node2 x 4", in the order of the ranks; cut where it gets long.
std::string hosts_text(const std::vector<std::string>& hosts);

/// What makes the run this run, without its dataset, and what it runs with.
RunFingerprint hparams(const step::Plan& plan);

/// The terms of the loss that weight decay is, by layer in forward order, of the weights as they are, added in
/// double; none where decay is no part of the loss. A pass over the weights in backend memory, between steps.
std::vector<report::WeightLoss> weight_losses(const step::Plan& plan, const step::Device& device,
                                              const step::StateTable& state);

/// Which layers' outputs the summaries lack, and why: a sentence; empty where they lack none.
std::string unseen_outputs(const model::NetSpec& net, const lower::Tower& tower);

/// How long this rank was in collectives since its start; below 0 where its runner cannot tell, and where there is
/// nobody else.
double communicated_seconds(const engine::Runner& step);

/// The state after `step` steps as a checkpoint has it, copied out of the device; between steps.
run::Checkpoint snapshot(const step::Plan& plan, const step::Device& device, const step::StateTable& state,
                         const optim::Schedule& schedule, std::uint64_t step,
                         std::optional<double> test_accuracy);

}  // namespace cifar_mpi::train
