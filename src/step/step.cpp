#include <algorithm>

#include "cifar_mpi/base/text.hpp"
#include "step/hidden_matrices.hpp"
#include "step/step_parts.hpp"

/// Builds the training step: one batch, from the sample order to the updated parameters.
namespace cifar_mpi::step {

engine::TrainBinding bind_step(const StepContext& context) {
  const auto& [plan, device, blocks, update] = context;
  const config::TrainConfig& config = plan.config;
  engine::TrainBinding binding;
  binding.params = blocks.state[optim::StateRole::weights].as<const float>();
  binding.control = update.block().control().data();
  binding.grads = update.block().grads().data();
  binding.control_layout = control_layout(plan, device);
  binding.rank = plan.world.rank();
  binding.step = blocks.step_counter.as<std::uint64_t>();
  binding.facts = blocks.facts.as<engine::RankFacts>();
  binding.data = device.samples.view();
  if (!plan.serves()) binding.order = sample_order(plan);
  binding.augment = plan.network.augment;
  binding.seed = config.seed;
  binding.global_batch = plan.sizes.global_batch;
  binding.statistics_share = 1.0f / static_cast<float>(plan.sizes.aggregated * plan.sizes.parts);
  if (const std::span<float> sums = update.rank_sums(); config.sync_batch_norm && !sums.empty())
    binding.rank_sums = {sums.last(device.layout.running_floats).data(), plan.sizes.aggregated};
  binding.label_smoothing = plan.config.label_smoothing;
  binding.requests = &blocks.request_word;
  if (blocks.value_counts.size() > 0) {
    binding.activations = blocks.value_counts.as<engine::ValueCounts>();
    binding.kept_images = blocks.kept_images.as<float>();
    binding.kept = kept_images(plan);
  }
  return binding;
}

double* gradient_norm(const StepContext& context) {
  const auto& [plan, device, blocks, update] = context;
  return plan.config.clip_norm > 0.0 ? blocks.gradient_norm.as<double>() : nullptr;
}

engine::UpdateBinding bind_update(const StepContext& context, const engine::TrainBinding& train,
                                  const comm::ParamSpan& span, double* decay_sum) {
  const Plan& plan = context.plan;
  const Blocks& blocks = context.blocks;
  engine::UpdateBinding update;
  update.params = blocks.state[optim::StateRole::weights].as<float>();
  update.grads = train.grads;
  update.ema = blocks.state[optim::StateRole::average].as<float>();
  update.begin = span.begin;
  update.end = span.end;
  update.control = train.control;
  update.step = train.step;
  update.decay_sum = decay_sum;
  update.schedule = config::schedule_spec(plan.config, plan.sizes, plan.info.train_count);
  update.average = config::average_rule(plan.config, plan.sizes, plan.info.train_count);
  update.optimizer = plan.config.optimizer;
  update.divides_by_staleness = plan.config.aggregation.scales_rate;
  std::size_t states = 0;
  for (const optim::StateRow& row : blocks.state.rows()) {
    if (row.of_optimizer) update.states[states++] = blocks.state[row.role].as<float>();
  }
  update.moves = blocks.hidden.moves.data();
  update.clip_norm = plan.config.clip_norm;
  update.gradient_norm = gradient_norm(context);
  return update;
}

std::vector<engine::Task> plan_update(const StepContext& context, const engine::UpdateBinding& update) {
  std::vector<engine::Task> tasks = matrix_tasks(context, update);
  tasks.push_back(
      context.device.backend->update_task(update, params_with_rates(context.plan), context.device.layout));
  return tasks;
}

engine::RunningBinding bind_running(const StepContext& context, const engine::TrainBinding& train) {
  const Blocks& blocks = context.blocks;
  engine::RunningBinding running;
  running.params = blocks.state[optim::StateRole::weights].as<float>();
  running.ema = blocks.state[optim::StateRole::average].as<float>();
  running.control = train.control;
  running.control_layout = train.control_layout;
  running.step = train.step;
  const Plan& plan = context.plan;
  running.average = config::average_rule(plan.config, plan.sizes, plan.info.train_count);
  running.gradient_norm = gradient_norm(context);
  return running;
}

namespace {

engine::LookaheadBinding bind_lookahead(const StepContext& context, const engine::TrainBinding& train) {
  const Plan& plan = context.plan;
  const Blocks& blocks = context.blocks;
  engine::LookaheadBinding binding;
  binding.params = blocks.state[optim::StateRole::weights].as<float>();
  binding.slow = blocks.state[optim::StateRole::slow].as<float>();
  binding.ema = blocks.state[optim::StateRole::average].as<float>();
  binding.floats = context.device.layout.floats;
  binding.rule = config::lookahead_rule(plan.config, plan.sizes, plan.info.train_count);
  binding.average = config::average_rule(plan.config, plan.sizes, plan.info.train_count);
  binding.control = train.control;
  binding.step = train.step;
  binding.gradient_norm = gradient_norm(context);
  return binding;
}

void allocate_summaries(const Plan& plan, const Device& device, Blocks& blocks) {
  const std::size_t params = plan.network.params.size() + trained_params(plan.network.params);
  std::size_t layers = device.tower->observed().size();
  for (const auto& [size, tower] : device.smaller) layers = std::max(layers, tower->observed().size());
  const std::size_t counted = layers + params;
  const auto floats = static_cast<std::size_t>(kept_images(plan) * plan.network.net.input.count());
  blocks.value_counts = device.backend->allocate(counted * sizeof(engine::ValueCounts));
  blocks.kept_images = device.backend->allocate(floats * sizeof(float));
}

void allocate_zeros(const Plan& plan, const Device& device, Blocks& blocks) {
  std::size_t floats = 0;
  if (!blocks.hidden.owners.empty())
    floats = std::ranges::max(blocks.hidden.matrices, {}, &engine::Matrix::floats).floats;
  for (std::size_t p = 0; p < plan.network.params.size(); ++p) {
    if (plan.network.params[p].steps > 0) floats = std::max(floats, device.layout.entries[p].floats);
  }
  if (floats > 0) blocks.zeros = device.backend->allocate(floats * sizeof(float));
}

/// No task writes these gradients, and a sum over ranks in place would multiply what an earlier program left there.
std::optional<engine::Task> clear_frozen(const StepContext& context, const engine::TrainBinding& binding) {
  const auto& [plan, device, blocks, update] = context;
  std::vector<engine::CopyBinding> spans;
  for (std::size_t p = 0; p < plan.network.params.size(); ++p) {
    const model::Param& param = plan.network.params[p];
    if (!param.trains() || param.trains(binding.after)) continue;
    const auto& entry = device.layout.entries[p];
    spans.push_back({reinterpret_cast<std::byte*>(binding.grads + entry.offset), blocks.zeros.data(),
                     entry.floats * sizeof(float)});
  }
  if (spans.empty()) return std::nullopt;
  return device.backend->copy_task("clear gradients of frozen parameters", spans);
}

/// A server's program runs on the host, whatever the workers use.
engine::RunnerKind runner_of(const Plan& plan) {
  const engine::RunnerKind asked = plan.config.runner;
  return plan.serves() && asked == engine::RunnerKind::graph ? engine::RunnerKind::lanes : asked;
}

}  // namespace

std::vector<engine::Bytes> regions_of(const StepContext& context) {
  const auto& [plan, device, blocks, update] = context;
  std::vector<engine::Bytes> regions;
  if (device.arena) regions = device.arena->regions();
  const auto watch = [&](const Buffer& block) {
    if (block.size() > 0) regions.push_back(engine::bytes_of(block.data(), block.size()));
  };
  for (const optim::StateRow& row : blocks.state.rows()) watch(blocks.state[row.role]);
  const std::span<float> gradients = update.block().all();
  regions.push_back(engine::bytes_of(gradients.data(), gradients.size()));
  if (const std::span<float> sums = update.rank_sums(); !sums.empty())
    regions.push_back(engine::bytes_of(sums.data(), sums.size()));
  for (const Buffer* block :
       {&blocks.step_counter, &blocks.batch_counter, &blocks.facts, &blocks.decay_sums, &blocks.gradient_norm,
        &blocks.value_counts, &blocks.kept_images, &blocks.weights_before, &blocks.round_sums,
        &blocks.hidden.places, &blocks.hidden.own_moves, &blocks.zeros}) {
    watch(*block);
  }
  if (blocks.hidden.arena) std::ranges::copy(blocks.hidden.arena->regions(), std::back_inserter(regions));
  return regions;
}

engine::ControlLayout control_layout(const Plan& plan, const Device& device) {
  return {plan.sizes.workers, device.layout.running_floats};
}

void write_step(const Device& device, Blocks& blocks, std::uint64_t done) {
  std::vector<std::uint64_t> counters(blocks.step_counter.size() / sizeof(std::uint64_t));
  for (std::uint64_t& counter : counters) counter = done++;
  device.backend->copy(blocks.step_counter.data(), counters.data(), blocks.step_counter.size());
}

void allocate_blocks(const Plan& plan, const Device& device, Blocks& blocks) {
  blocks.state.allocate(*device.backend, device.layout, state_rows(plan.config));
  blocks.step_counter =
      device.backend->allocate(static_cast<std::size_t>(plan.sizes.local_steps) * sizeof(std::uint64_t));
  if (plan.sizes.partial_aggregation())
    blocks.batch_counter = device.backend->allocate(sizeof(std::uint64_t));
  allocate_hidden(plan, device, blocks);
  allocate_zeros(plan, device, blocks);
  blocks.facts = device.backend->allocate(sizeof(engine::RankFacts));
  // One for each span, and one that is never read.
  blocks.decay_sums = device.backend->allocate((blocks.update->spans().size() + 1) * sizeof(double));
  if (plan.config.clip_norm > 0.0 || plan.config.summary_every > 0)
    blocks.gradient_norm = device.backend->allocate(sizeof(double));
  if (plan.config.summary_every > 0 && !plan.serves()) allocate_summaries(plan, device, blocks);
  blocks.records.resize(engine::kRecordRing);
  for (int parts = 1; parts < plan.sizes.parts; parts *= 2)
    blocks.partials.push_back(device.backend->allocate(blocks.update->block().all().size_bytes()));
  if (plan.config.update == comm::UpdateKind::local) {
    blocks.weights_before = device.backend->allocate(device.layout.trained_floats * sizeof(float));
    blocks.round_sums = device.backend->allocate(control_layout(plan, device).statistics() * sizeof(float));
  }
  blocks.update->bind({{blocks.state[optim::StateRole::weights].as<float>(), device.layout.trained_floats},
                       {blocks.decay_sums.as<double>(), blocks.update->spans().size()},
                       blocks.step_counter.as<std::uint64_t>()});
}

/// From the control block to the last backward task of the rank's whole batch.
///
/// If there are several parts, their sums (control block and gradients) are added as a balanced binary tree:
/// `partials` holds the finished subtrees, that of 2^j parts at index j, like the digits of a binary counter;
/// after the last part the remaining ones are added. Micro-shards are a power of two, and the all-reduce
/// continues the same tree over the ranks, so the order of additions depends only on their number.
std::vector<engine::Task> compute_tasks(const StepContext& context, engine::TrainBinding binding, int step,
                                        int steps) {
  const auto& [plan, device, blocks, update] = context;
  std::vector<engine::Task> tasks;
  if (auto clear = clear_frozen(context, binding)) tasks.push_back(std::move(*clear));
  const int parts = plan.sizes.parts;
  binding.parts = steps * parts;
  const std::size_t floats = binding.control_layout.floats() + device.layout.trained_floats;
  for (int part = 0; part < parts; ++part) {
    binding.part = step * parts + part;
    binding.first_sample =
        static_cast<std::uint64_t>(part) * static_cast<std::uint64_t>(plan.sizes.batch / parts);
    device.arena->rewind();
    for (engine::Task& task :
         device.tower_for(binding.augment.image_size).train_tasks(binding, *device.arena))
      tasks.push_back(std::move(task));
    float* const sums = binding.control;
    const bool last = part + 1 == parts;
    std::size_t subtree = 0;
    for (; (part >> subtree) != 0; ++subtree) {
      const bool is_there = (part >> subtree & 1) != 0;
      if (!is_there && !last) break;
      if (is_there)
        tasks.push_back(
            device.backend->sum_task(concat("add ", 1 << subtree, " parts"),
                                     {sums, blocks.partials[subtree].as<const float>(), sums, floats}));
    }
    if (last) break;
    tasks.push_back(device.backend->sum_task(concat("keep ", 1 << subtree, " parts"),
                                             {blocks.partials[subtree].as<float>(), sums, nullptr, floats}));
  }
  return tasks;
}

std::unique_ptr<engine::Runner> plan_step(const StepContext& context, comm::Concurrency concurrent,
                                          const StepKind& kind) {
  const auto& [plan, device, blocks, update] = context;
  engine::TrainBinding binding = bind_step(context);
  binding.augment.image_size = kind.image_size;
  binding.after = kind.frozen_at;
  const engine::ControlLayout& control = binding.control_layout;
  const engine::ParamLayout& layout = device.layout;
  const std::size_t trained = layout.trained_floats;

  comm::StepParts parts;
  if (!plan.serves()) {
    engine::TrainBinding computing = binding;
    if (plan.sizes.partial_aggregation()) computing.step = blocks.batch_counter.as<std::uint64_t>();
    parts.compute = compute_tasks(context, computing);
  }
  for (const comm::ParamSpan& span : update.spans()) {
    if (span.end > trained) break;  // the other blocks that local steps exchange
    parts.update.push_back(plan_update(
        context, bind_update(context, binding, span, blocks.decay_sums.as<double>() + parts.update.size())));
  }
  if (double* const norm = gradient_norm(context)) {
    parts.before_updates = device.backend->gradient_norm_task({binding.grads, trained, norm});
  }
  engine::AdvanceBinding advance;
  advance.control = binding.control;
  advance.control_layout = control;
  advance.global_batch = binding.global_batch;
  advance.decay_sums = {blocks.decay_sums.as<const double>(), parts.update.size()};
  advance.step = binding.step;
  advance.gradient_norm = gradient_norm(context);
  if (layout.running_floats > 0) {
    parts.finish.push_back(
        device.backend->running_task(bind_running(context, binding), plan.network.params, layout));
  }
  if (plan.config.lookahead > 0)
    parts.finish.push_back(device.backend->lookahead_task(bind_lookahead(context, binding)));
  parts.finish.push_back(device.backend->advance_task(advance, blocks.records));
  if (plan.sizes.partial_aggregation() && !plan.serves()) {
    // Versions are made without this worker, so its samples continue from its own count.
    parts.finish.push_back(
        device.backend->increment_task("count batch", blocks.batch_counter.as<std::uint64_t>()));
  }
  engine::StepProgram program("train");
  update.append(program, std::move(parts), concurrent);
  program.finalize();
  return device.backend->runner(std::move(program), runner_of(plan), regions_of(context));
}

engine::ValueCounts* param_counts(const Plan& plan, const Blocks& blocks) {
  const std::size_t params = plan.network.params.size() + trained_params(plan.network.params);
  return blocks.value_counts.as<engine::ValueCounts>() +
         (blocks.value_counts.size() / sizeof(engine::ValueCounts) - params);
}

/// On one lane, since it runs between steps, when nothing else does.
std::unique_ptr<engine::Runner> plan_histograms(const StepContext& context) {
  const auto& [plan, device, blocks, update] = context;
  const engine::ParamLayout& layout = device.layout;
  const auto* const weights = blocks.state[optim::StateRole::weights].as<const float>();
  const float* const grads = update.block().grads().data();
  const std::size_t params = layout.entries.size(), trained = trained_params(plan.network.params);
  auto* const counts = param_counts(plan, blocks);
  std::vector<engine::CountBinding> variables, gradients;
  for (std::size_t p = 0; p < params; ++p) {
    const std::size_t at = layout.entries[p].offset;
    const std::vector<engine::ValueRun> runs = device.tower->values_of(p);
    variables.push_back({weights + at, runs, counts + p});
    if (p < trained) gradients.push_back({grads + at, runs, counts + params + p});
  }
  engine::StepProgram program("summary");
  program.run(engine::kCompute, device.backend->count_task("count variables", variables));
  program.run(engine::kCompute, device.backend->count_task("count gradients", gradients));
  program.run(engine::kCompute, device.backend->gradient_norm_task(
                                    {grads, layout.trained_floats, blocks.gradient_norm.as<double>()}));
  program.finalize();
  return device.backend->runner(std::move(program), plan.config.runner, regions_of(context));
}

}  // namespace cifar_mpi::step
