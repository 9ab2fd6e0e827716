#include <algorithm>
#include <limits>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/report/timeline.hpp"
#include "step/step_parts.hpp"

/// Builds the program of local steps: all those between two averagings are one replay.
///
/// Each is a step of one rank alone; its gradient is the mean over the rank's own batch. After the last one,
/// the move of each weight (before − after, divided by the ranks) replaces the gradient, followed by the
/// optimizer's state (divided by the ranks); the run's update sums these as it sums gradients. Then the outer
/// rule moves the earlier weights, and the state is set to the mean. Running statistics travel with the
/// control block, as those of a batch do.
namespace cifar_mpi::step {
namespace {

/// Rows of the table that the optimizer keeps.
std::vector<optim::StateRow> optimizer_rows(const Blocks& blocks) {
  std::vector<optim::StateRow> rows;
  for (const optim::StateRow& row : blocks.state.rows()) {
    if (row.of_optimizer) rows.push_back(row);
  }
  return rows;
}

/// The averaging has no decay and no rates of its own.
model::ParamTable plain_params(const model::ParamTable& params, float rate_factor) {
  model::ParamTable plain = params;
  for (model::Param& param : plain) {
    param.weight_decay = 0.0f;
    param.rate_factor = rate_factor;
  }
  return plain;
}

class LocalProgram {
 public:
  explicit LocalProgram(const StepContext& context)
      : s_(context),
        backend_(*context.device.backend),
        train_(bind_step(context)),
        layout_(context.device.layout),
        trained_(layout_.trained_floats),
        steps_(context.plan.sizes.local_steps),
        share_(1.0f / static_cast<float>(context.plan.sizes.workers)) {
    train_.global_batch = static_cast<std::uint64_t>(context.plan.sizes.batch);
    train_.statistics_share = 1.0f / static_cast<float>(context.plan.sizes.parts);
  }

  engine::StepProgram build(comm::Concurrency concurrent) {
    comm::StepParts parts;
    parts.compute.push_back(backend_.sum_task("weights before", {before(), weights(), nullptr, trained_}));
    for (int step = 0; step < steps_; ++step) add_step(parts.compute, step);
    add_moves(parts.compute);
    add_updates(parts.update);
    if (double* const norm = gradient_norm(s_))
      parts.before_updates = backend_.gradient_norm_task({train_.grads, trained_, norm});
    add_finish(parts.finish);
    engine::StepProgram program(report::kLocalSteps);
    s_.update.append(program, std::move(parts), concurrent);
    program.finalize();
    return program;
  }

 private:
  float* weights() const { return s_.blocks.state[optim::StateRole::weights].as<float>(); }
  float* before() const { return s_.blocks.weights_before.as<float>(); }
  float* statistics() const { return train_.control + train_.control_layout.statistics(); }
  /// The decay term of a replay is taken in its first step, when all ranks have the same weights.
  double* decay_sum(bool counts) const { return s_.blocks.decay_sums.as<double>() + (counts ? 0 : 1); }

  void add_step(std::vector<engine::Task>& tasks, int step) {
    engine::TrainBinding train = train_;
    train.step = train_.step + step;
    for (engine::Task& task : compute_tasks(s_, train, step, steps_)) tasks.push_back(std::move(task));
    if (double* const norm = gradient_norm(s_))
      tasks.push_back(backend_.gradient_norm_task({train.grads, trained_, norm}));
    engine::UpdateBinding update = bind_update(s_, train, {0, trained_}, decay_sum(step == 0));
    update.average_steps = 0;
    for (engine::Task& task : plan_update(s_, update)) tasks.push_back(std::move(task));
    if (layout_.running_floats > 0) {
      engine::RunningBinding running = bind_running(s_, train);
      running.average_steps = 0;
      tasks.push_back(backend_.running_task(running, s_.plan.network.params, layout_));
    }
    add_sums(tasks, step);
  }

  /// The next batch clears the control block, except sums, requests and this rank's slot, which only the
  /// first batch fills.
  void add_sums(std::vector<engine::Task>& tasks, int step) {
    const std::size_t floats = train_.control_layout.statistics();
    float* const sums = s_.blocks.round_sums.as<float>();
    if (steps_ == 1) return;
    if (step == 0) {
      tasks.push_back(backend_.sum_task("keep sums", {sums, train_.control, nullptr, floats}));
    } else {
      float* const to = step + 1 < steps_ ? sums : train_.control;
      tasks.push_back(backend_.sum_task("add sums", {to, sums, train_.control, floats}));
    }
  }

  void add_moves(std::vector<engine::Task>& tasks) {
    tasks.push_back(
        backend_.sum_task("moves of weights", {train_.grads, before(), weights(), trained_, share_, -1.0f}));
    float* block = train_.grads;
    for (const optim::StateRow& row : optimizer_rows(s_.blocks)) {
      block += trained_;
      tasks.push_back(
          backend_.sum_task(concat("share of ", row.what),
                            {block, s_.blocks.state[row.role].as<const float>(), nullptr, trained_, share_}));
    }
    if (layout_.running_floats == 0) return;
    tasks.push_back(backend_.sum_task(
        "share of statistics",
        {statistics(), weights() + layout_.running_begin(), nullptr, layout_.running_floats, share_}));
  }

  /// One for each exchanged span: the first block moves by the outer rule, the others are set to the mean.
  void add_updates(std::vector<std::vector<engine::Task>>& tasks) {
    const std::vector<optim::StateRow> rows = optimizer_rows(s_.blocks);
    const model::ParamTable plain = plain_params(s_.plan.network.params, 1.0f);
    for (const comm::ParamSpan& span : s_.update.spans()) {
      if (span.end <= trained_) {
        tasks.push_back({backend_.update_task(outer(span), plain, layout_)});
        continue;
      }
      const std::size_t block = span.begin / trained_;
      const optim::StateRow& row = rows[block - 1];
      tasks.push_back(
          {backend_.sum_task(concat("mean of ", row.what),
                             {s_.blocks.state[row.role].as<float>() + span.begin - block * trained_,
                              train_.grads + span.begin, nullptr, span.end - span.begin})});
    }
  }

  engine::UpdateBinding outer(const comm::ParamSpan& span) {
    engine::UpdateBinding update = bind_update(s_, train_, span, decay_sum(false));
    update.params = before();
    update.schedule = optim::outer_schedule(s_.plan.config.local);
    update.optimizer = optim::outer_optimizer(s_.plan.config.local);
    std::ranges::fill(update.states, nullptr);
    update.moves = nullptr;
    if (has_outer_momentum(s_.plan.config))
      update.states[0] = s_.blocks.state[optim::StateRole::outer_momentum].as<float>();
    update.average_steps = steps_;
    update.clip_norm = std::numeric_limits<double>::max();  // moves are not clipped
    return update;
  }

  void add_finish(std::vector<engine::Task>& tasks) {
    tasks.push_back(backend_.sum_task("weights after", {weights(), before(), nullptr, trained_}));
    if (layout_.running_floats > 0) {
      tasks.push_back(backend_.sum_task(
          "mean of statistics",
          {weights() + layout_.running_begin(), statistics(), nullptr, layout_.running_floats}));
      engine::RunningBinding running = bind_running(s_, train_);
      running.average_steps = steps_;
      // The weights are in place already; only their averages move.
      tasks.push_back(backend_.running_task(running, plain_params(s_.plan.network.params, 0.0f), layout_));
    }
    engine::AdvanceBinding advance;
    advance.control = train_.control;
    advance.control_layout = train_.control_layout;
    advance.global_batch = s_.plan.sizes.global_batch * static_cast<std::uint64_t>(steps_);
    advance.decay_sums = {decay_sum(true), 1};
    advance.step = train_.step;
    advance.steps = steps_;
    advance.gradient_norm = gradient_norm(s_);
    tasks.push_back(backend_.advance_task(advance, s_.blocks.records));
  }

  StepContext s_;
  engine::Backend& backend_;
  engine::TrainBinding train_;
  const engine::ParamLayout& layout_;
  std::size_t trained_;
  int steps_;
  float share_;
};

}  // namespace

int exchanged_blocks(const config::TrainConfig& config) {
  const std::vector<optim::StateRow> rows = optim::state_rows(config.optimizer.kind);
  return 1 + static_cast<int>(
                 std::ranges::count_if(rows, [](const optim::StateRow& row) { return row.of_optimizer; }));
}

std::unique_ptr<engine::Runner> plan_local_steps(const StepContext& context, comm::Concurrency concurrent) {
  return context.device.backend->runner(LocalProgram(context).build(concurrent), context.plan.config.runner,
                                        regions_of(context));
}

}  // namespace cifar_mpi::step
