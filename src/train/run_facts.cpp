#include "train/run_facts.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <variant>

#include "cifar_mpi/base/build_info.hpp"
#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/model/layer.hpp"
#include "cifar_mpi/optim/step_math.hpp"
#include "report/run_summary.hpp"

namespace cifar_mpi::train {

std::string hosts_text(const std::vector<std::string>& hosts) {
  constexpr std::size_t kMost = 4096;
  std::string text;
  for (std::size_t first = 0, end = 0; first < hosts.size(); first = end) {
    if (text.size() > kMost) return text + ", …";
    while (end < hosts.size() && hosts[end] == hosts[first]) ++end;
    text += concat(text.empty() ? "" : ", ", hosts[first], " x ", end - first);
  }
  return text;
}

report::RunEvent start_event(const step::Plan& plan, std::uint64_t step, std::uint64_t reached,
                             const std::string& last_end) {
  report::RunEvent event;
  event.kind = step > 0 ? report::RunEventKind::resume : report::RunEventKind::start;
  event.step = step;
  event.time = wall_time();
  event.text = last_end;
  event.ranks = plan.world.size();
  event.hosts = hosts_text(plan.world.hosts());
  event.global_batch = plan.sizes.global_batch;
  event.total_steps = plan.sizes.total_steps;
  event.reached = reached;
  return event;
}

std::string repeat_text(std::uint64_t step, std::uint64_t reached) {
  const std::uint64_t repeated = reached - step;
  return concat("the previous start logged step ", reached, ": this start repeats ",
                counted(repeated, "step"),
                step == 0 ? ", because the run directory holds no later checkpoint" : "");
}

namespace {

/// What follows in messages that a run diverged.
constexpr const char* kDivergedAdvice =
    "; nothing was written after the last checkpoint. Try a smaller --lr, or --warmup-epochs, in a new "
    "--run-dir";

/// Σ w² over the span of a parameter, whose padding is zero.
double square_sum(engine::Backend& backend, const Buffer& block, const engine::ParamLayout::Entry& entry) {
  constexpr std::size_t kPiece = std::size_t{1} << 16;  // floats; a copy of so many stays in the cache
  constexpr std::size_t kLanes = 16;                    // layouts are multiples of it
  const float* const weights = block.as<const float>() + entry.offset;
  std::vector<float> piece(std::min(kPiece, entry.floats));
  double lanes[kLanes] = {};
  for (std::size_t at = 0; at < entry.floats; at += piece.size()) {
    const std::span<float> part = std::span(piece).first(std::min(piece.size(), entry.floats - at));
    backend.copy(part.data(), weights + at, part.size_bytes());
    for (std::size_t i = 0; i < part.size(); i += kLanes) {
      for (std::size_t j = 0; j < kLanes; ++j) {
        const double w = static_cast<double>(part[i + j]);
        lanes[j] += w * w;
      }
    }
  }
  double sum = 0.0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

void require_finite(const step::Plan& plan, const step::Device& device, const step::StateTable& state,
                    std::uint64_t steps) {
  std::optional<Error> mine;
  const std::string what = state.first_not_finite(*device.backend, device.layout, plan.network.params);
  if (!what.empty()) {
    mine.emplace(ErrorKind::diverged, "diverged: after step ", steps, ' ', what, " are not finite",
                 kDivergedAdvice);
  }
  plan.world.agree(mine);
}

void require_converging(const engine::Replay& replay, const engine::StepRecord& record, bool in_step) {
  const double loss = record.cross_entropy + record.decay_term;
  if (!record.applied) {
    const bool by_loss = !std::isfinite(loss);
    throw comm::AgreedError(
        ErrorKind::diverged, "diverged: the ", by_loss ? "loss" : "gradient's norm", " of step ",
        in_step && replay.steps() > 1 ? concat(replay.begin + 1, " to ") : "", replay.end, " is ",
        std::isnan(by_loss ? loss : record.gradient_norm) ? "not a number" : "infinite", kDivergedAdvice);
  }
  // A weight near the limits of fp32 can keep the loss finite for long, but such a run does not come back.
  constexpr double kLost = 1e6;
  if (loss > kLost && in_step) {
    throw comm::AgreedError(ErrorKind::diverged, "diverged: the loss of step ", replay.end, " is ",
                            fmt::format("{:.3g}", loss), kDivergedAdvice);
  }
}

void log_best(const step::Plan& plan, run::RunCheckpoints& checkpoints, std::uint64_t steps,
              report::ProgressView& view) {
  if (plan.world.rank() != 0 || !plan.config.keep_best) return;
  if (const auto best = checkpoints.best(steps)) {
    view.event(concat("best checkpoint: ", run::checkpoint_path(plan.config.run_dir, best->step),
                      fmt::format(", test accuracy {:.2f} %", 100.0 * best->test_accuracy)));
  }
}

void log_summary(const step::Plan& plan, const engine::Backend& backend, report::ProgressView& view,
                 const char* no_samples, std::uint64_t resumed) {
  const std::string other_work = step::other_work_text(plan, backend);
  if (plan.world.rank() != 0) return;
  if (!other_work.empty()) view.warning(other_work);
  for (const std::string& line : report::run_summary(*plan.run, no_samples, resumed)) view.event(line);
}

RunFingerprint hparams(const step::Plan& plan) {
  RunFingerprint chosen;
  for (const auto& [item, value] : plan.progress.identity) {
    if (item == "model") chosen.emplace_back(item, value);
    if (item.starts_with("--")) chosen.emplace_back(item.substr(2), value);
  }
  for (const auto& setting : plan.progress.resolved) {
    if (setting.first == "precision" || setting.first == "ranks") chosen.push_back(setting);
  }
  return chosen;
}

std::vector<report::WeightLoss> weight_losses(const step::Plan& plan, const step::Device& device,
                                              const step::StateTable& state) {
  std::vector<report::WeightLoss> losses;
  if (!optim::decays_by_loss(plan.config.optimizer.kind)) return losses;
  const model::ParamTable& params = plan.network.params;
  const bool muon = plan.config.optimizer.kind == optim::OptimizerKind::muon;
  std::size_t operation = params.size();
  for (std::size_t p = trained_params(params); p-- > 0;) {  // the table is in the order of backward
    if (params[p].weight_decay == 0.0f) continue;
    // muon decays these directly, not through the loss
    if (muon && model::rate_role(params, p) == model::RateRole::hidden_matrix) continue;
    if (losses.empty() || params[p].operation != operation) {
      operation = params[p].operation;
      losses.push_back({plan.network.net.operations[operation].name, 0.0});
    }
    losses.back().value +=
        0.5 * static_cast<double>(params[p].weight_decay) *
        square_sum(*device.backend, state[optim::StateRole::weights], device.layout.entries[p]);
  }
  return losses;
}

std::string unseen_outputs(const model::NetSpec& net, const lower::Tower& tower) {
  constexpr std::size_t kMost = 8;  // named
  const std::vector<std::string> seen = tower.observed();
  std::string names;
  std::size_t count = 0;
  for (const model::Operation& operation : net.operations) {
    if (std::holds_alternative<model::Relu>(operation.layer) ||
        std::holds_alternative<model::SoftmaxCrossEntropy>(operation.layer) ||
        std::ranges::find(seen, operation.name) != seen.end())
      continue;
    if (++count <= kMost) names += concat(count == 1 ? "" : ", ", operation.name);
  }
  if (count == 0) return {};
  return concat("no histogram of the outputs of ", names,
                count > kMost ? concat(" and ", count - kMost, " more") : std::string(),
                ": a kernel hands them on to the next layer, they are in no memory as a whole");
}

double communicated_seconds(const engine::Runner& step) {
  const std::vector<double> seconds = step.task_seconds();
  double sum = -1.0;
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    if (step.program().tasks()[i].kind != engine::TaskKind::collective) continue;
    sum = std::max(sum, 0.0) + seconds[i];
  }
  return sum;
}

run::Checkpoint snapshot(const step::Plan& plan, const step::Device& device, const step::StateTable& state,
                         const optim::Schedule& schedule, std::uint64_t step,
                         std::optional<double> test_accuracy) {
  run::Checkpoint c;
  c.optimizer = plan.config.optimizer;
  c.outer_momentum = step::has_outer_momentum(plan.config);
  c.slow = plan.config.lookahead > 0;
  c.state = state.read(*device.backend, *device.tower, plan.network.params);
  c.progress = plan.progress;
  c.progress.step = step;
  c.progress.epoch = static_cast<double>(step) / plan.sizes.steps_per_epoch;
  c.progress.samples_seen = step * plan.sizes.global_batch;
  run::Provenance& from = c.provenance;
  from.ranks = plan.world.size();
  from.global_batch = plan.sizes.global_batch;
  from.learning_rate = schedule.rate(step);
  from.learning_rate_rule = schedule.describe();
  from.precision = to_string(plan.config.precision);
  from.backend = device.backend->description();
  from.kernels = device.plan_text();
  from.configuration = run::without_paths(plan.config.text);
  from.git_revision = git_revision();
  from.time = wall_time();
  from.test_accuracy = test_accuracy;
  from.views = plan.config.views;
  from.initialized_from = plan.initialized_from;
  from.changes = plan.changes;
  from.self_check = plan.self_check;
  return c;
}

}  // namespace cifar_mpi::train
