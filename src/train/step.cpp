#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/comm/all_reduce_update.hpp"
#include "cifar_mpi/comm/server_update.hpp"
#include "train/state.hpp"
#include "train/step_parts.hpp"

/// Builds the training step: the way of one batch, from the sample order to the updated parameters.
namespace cifar_mpi::train {

engine::TrainBinding bind_step(const SessionState& state) {
  const TrainConfig& config = state.config;
  const engine::ControlLayout control = control_layout(state);
  engine::TrainBinding binding;
  binding.params = state.state[optim::StateRole::weights].as<const float>();
  binding.control = state.gradients.as<float>();
  binding.grads = binding.control + control.floats();
  binding.control_layout = control;
  binding.rank = state.world.rank();
  binding.step = state.step_counter.as<std::uint64_t>();
  binding.facts = state.facts.as<engine::RankFacts>();
  binding.data = state.samples.view();
  if (!state.serves()) binding.order = sample_order(state);
  binding.augment = state.network.augment;
  binding.seed = config.seed;
  binding.global_batch = state.sizes.global_batch;
  binding.statistics_share = 1.0f / static_cast<float>(state.sizes.aggregated * state.sizes.parts);
  binding.label_smoothing = state.config.label_smoothing;
  binding.requests = &state.request_word;
  if (state.value_counts.size() > 0) {
    binding.activations = state.value_counts.as<engine::ValueCounts>();
    binding.kept_images = state.kept_images.as<float>();
    binding.kept = kept_images(state);
  }
  return binding;
}

double* gradient_norm(SessionState& state) {
  return state.config.clip_norm > 0.0 ? state.gradient_norm.as<double>() : nullptr;
}

engine::UpdateBinding bind_update(SessionState& state, const engine::TrainBinding& train,
                                  const comm::ParamSpan& span, double* decay_sum) {
  engine::UpdateBinding update;
  update.params = state.state[optim::StateRole::weights].as<float>();
  update.grads = train.grads;
  update.ema = state.state[optim::StateRole::average].as<float>();
  update.begin = span.begin;
  update.end = span.end;
  update.control = train.control;
  update.step = train.step;
  update.decay_sum = decay_sum;
  update.schedule = schedule_spec(state.config, state.sizes, state.info.train_count);
  update.ema_decay = state.config.ema_decay;
  update.optimizer = state.config.optimizer;
  update.divides_by_staleness = state.config.aggregation.scales_rate;
  std::size_t states = 0;
  for (const optim::StateRow& row : state.state.rows()) {
    if (row.of_optimizer) update.states[states++] = state.state[row.role].as<float>();
  }
  update.clip_norm = state.config.clip_norm;
  update.gradient_norm = gradient_norm(state);
  return update;
}

engine::RunningBinding bind_running(SessionState& state, const engine::TrainBinding& train) {
  engine::RunningBinding running;
  running.params = state.state[optim::StateRole::weights].as<float>();
  running.ema = state.state[optim::StateRole::average].as<float>();
  running.control = train.control;
  running.control_layout = train.control_layout;
  running.step = train.step;
  running.ema_decay = state.config.ema_decay;
  running.gradient_norm = gradient_norm(state);
  return running;
}

namespace {

void allocate_summaries(SessionState& state) {
  const std::size_t params = state.network.params.size() + trained_params(state.network.params);
  const std::size_t counted = state.tower->observed().size() + params;
  const auto floats = static_cast<std::size_t>(kept_images(state) * state.network.net.input.count());
  state.value_counts = state.backend->allocate(counted * sizeof(engine::ValueCounts));
  state.kept_images = state.backend->allocate(floats * sizeof(float));
}

}  // namespace

std::vector<engine::Bytes> regions_of(const SessionState& state) {
  std::vector<engine::Bytes> regions;
  if (state.arena) regions = state.arena->regions();
  const auto watch = [&](const Buffer& block) {
    if (block.size() > 0) regions.push_back(engine::bytes_of(block.data(), block.size()));
  };
  for (const optim::StateRow& row : state.state.rows()) watch(state.state[row.role]);
  for (const Buffer* block : {&state.gradients, &state.step_counter, &state.batch_counter, &state.facts,
                              &state.decay_sums, &state.gradient_norm, &state.value_counts,
                              &state.kept_images, &state.weights_before, &state.round_sums}) {
    watch(*block);
  }
  return regions;
}

engine::ControlLayout control_layout(const SessionState& state) {
  return {state.sizes.workers, state.layout.running_floats};
}

data::SampleOrder sample_order(const SessionState& state) {
  return {state.config.shuffle, state.config.seed,   state.info.train_count,
          state.world.rank(),   state.sizes.workers, state.sizes.batch};
}

run::Retention retention_of(const TrainConfig& config) {
  return {config.keep, config.keep_every, config.keep_best};
}

std::uint64_t eval_every(const SessionState& state) {
  if (state.config.eval_every <= 0.0) return state.sizes.total_steps;
  return std::max<std::uint64_t>(
      1, static_cast<std::uint64_t>(std::llround(state.config.eval_every * state.sizes.steps_per_epoch)));
}

bool has_outer_momentum(const TrainConfig& config) {
  return config.update == comm::UpdateKind::local && config.local.outer == optim::OuterKind::nesterov;
}

void write_step(SessionState& state, std::uint64_t done) {
  std::vector<std::uint64_t> counters(state.step_counter.size() / sizeof(std::uint64_t));
  for (std::uint64_t& counter : counters) counter = done++;
  state.backend->copy(state.step_counter.data(), reinterpret_cast<const std::byte*>(counters.data()),
                      state.step_counter.size());
}

engine::BackendOptions backend_options(const SessionState& state) {
  const comm::World& computing = state.workers ? *state.workers : state.world;
  engine::BackendOptions options{
      state.config.threads,    state.world.oversubscribed(), computing.node_rank(), computing.node_size(),
      state.config.share_gpus, state.config.nccl_algorithm,  state.config.nccl_nvls};
  options.serves = state.serves();
  options.conv_threads = state.conv_threads;
  return options;
}

void open_device(SessionState& state, const comm::PlatformFactory& make_platform) {
  comm::Platform platform = make_platform(backend_options(state));
  state.backend = std::move(platform.backend);
  state.collectives = std::move(platform.collectives);
}

void plan_network(SessionState& state) {
  TrainConfig& config = state.config;
  config.precision = state.backend->resolve(config.precision);
  const engine::TowerSpec spec{&state.network.net, &state.network.params,
                               state.sizes.batch / state.sizes.parts, config.precision, config.conv};
  state.tower = std::make_unique<lower::Tower>(*state.backend, spec);
  state.layout = state.tower->layout();
  state.arena.emplace([&backend = *state.backend](std::size_t bytes) { return backend.allocate(bytes); });
}

std::vector<std::string> agree_on_kernels(SessionState& state) {
  std::vector<std::string> slower;
  const comm::World& computing = state.workers ? *state.workers : state.world;
  state.world.together([&] {
    if (state.serves() || !state.collectives.agree_on_kernels) return;
    for (bool again = true; again;) {
      comm::KernelAgreement agreed = state.collectives.agree_on_kernels(computing);
      slower = std::move(agreed.slower);
      again = agreed.again;
      if (again) computing.together([&] { plan_network(state); });
    }
  });
  return slower;
}

namespace {

std::unique_ptr<comm::Update> make_all_reduce_update(const SessionState& state) {
  const TrainConfig& config = state.config;
  const std::string name =
      config.reproducible ? std::string(comm::fixed_tree_collective()) : config.all_reduce;
  std::unique_ptr<comm::Collective> collective = state.collectives.make(name, state.world, config.wire);
  const bool overlap = comm::resolve_overlap(config.overlap, state.world, state.collectives.device);
  comm::AllReduceSettings settings{config.bucket_mib, config.wire, overlap};
  if (config.update == comm::UpdateKind::local) settings.blocks = exchanged_blocks(state);
  return std::make_unique<comm::AllReduceUpdate>(std::move(collective), state.layout, settings);
}

std::unique_ptr<comm::Update> make_server_update(const SessionState& state) {
  state.world.together([&] {
    if (state.workers && state.collectives.compare_devices) state.collectives.compare_devices(*state.workers);
  });
  const bool overlap = comm::resolve_overlap(state.config.overlap, state.world, false);  // through the hosts
  return comm::make_server_update(
      state.world, state.layout,
      {state.config.servers, overlap, &state.request_word, state.config.aggregation, state.progress.batches,
       state.collectives.device ? state.backend.get() : nullptr});
}

std::unique_ptr<comm::Update> make_update(const SessionState& state) {
  switch (state.config.update) {
    case comm::UpdateKind::all_reduce:
    case comm::UpdateKind::local:
      return make_all_reduce_update(state);
    case comm::UpdateKind::server:
      return make_server_update(state);
  }
  throw std::logic_error("an unknown way to update");
}

}  // namespace

void open_update(SessionState& state) {
  state.update = make_update(state);
  state.gradients = state.update->allocate(control_layout(state).floats());
}

void plan_device(SessionState& state, const comm::PlatformFactory& make_platform) {
  open_device(state, make_platform);
  if (!state.serves()) plan_network(state);
}

int kept_images(const SessionState& state) {
  return std::min(state.shown_images, state.sizes.batch / state.sizes.parts);
}

void allocate_blocks(SessionState& state) {
  state.state.allocate(*state.backend, state.layout,
                       optim::state_rows(state.config.optimizer.kind, has_outer_momentum(state.config)));
  state.step_counter =
      state.backend->allocate(static_cast<std::size_t>(state.sizes.local_steps) * sizeof(std::uint64_t));
  if (state.skips()) state.batch_counter = state.backend->allocate(sizeof(std::uint64_t));
  state.facts = state.backend->allocate(sizeof(engine::RankFacts));
  // One for each span, and one that nobody reads.
  state.decay_sums = state.backend->allocate((state.update->spans().size() + 1) * sizeof(double));
  if (state.config.clip_norm > 0.0 || state.config.summary_every > 0)
    state.gradient_norm = state.backend->allocate(sizeof(double));
  if (state.config.summary_every > 0 && !state.serves()) allocate_summaries(state);
  state.records.resize(engine::kRecordRing);
  for (int parts = 1; parts < state.sizes.parts; parts *= 2)
    state.partials.push_back(state.backend->allocate(state.gradients.size()));
  if (state.config.update == comm::UpdateKind::local) allocate_local_blocks(state);
}

/// Control block to last backward task of the rank's whole batch.
///
/// In parts, each part's sums (control block and gradients) are added as a balanced binary tree over the
/// parts: `partials` holds the finished subtrees, that of 2^j parts in place j, as a binary counter holds its
/// digits; behind the last part all that is left of them is added. Of micro-shards, which are a power of two,
/// what is added in which order depends on their number alone, for the all-reduce goes on with the same tree
/// over the ranks.
std::vector<engine::Task> compute_tasks(SessionState& state, engine::TrainBinding binding, int step,
                                        int steps) {
  std::vector<engine::Task> tasks;
  const int parts = state.sizes.parts;
  binding.parts = steps * parts;
  const std::size_t floats = binding.control_layout.floats() + state.layout.trained_floats;
  for (int part = 0; part < parts; ++part) {
    binding.part = step * parts + part;
    binding.first_sample =
        static_cast<std::uint64_t>(part) * static_cast<std::uint64_t>(state.sizes.batch / parts);
    state.arena->rewind();
    for (engine::Task& task : state.tower->train_tasks(binding, *state.arena))
      tasks.push_back(std::move(task));
    float* const sums = state.gradients.as<float>();
    const bool last = part + 1 == parts;
    std::size_t subtree = 0;
    for (; (part >> subtree) != 0; ++subtree) {
      const bool is_there = (part >> subtree & 1) != 0;
      if (!is_there && !last) break;
      if (is_there)
        tasks.push_back(
            state.backend->sum_task(concat("add ", 1 << subtree, " parts"),
                                    {sums, state.partials[subtree].as<const float>(), sums, floats}));
    }
    if (last) break;
    tasks.push_back(state.backend->sum_task(concat("keep ", 1 << subtree, " parts"),
                                            {state.partials[subtree].as<float>(), sums, nullptr, floats}));
  }
  return tasks;
}

namespace {

/// Of the steps behind `done` the first at which there is more to do than to go on.
std::function<std::uint64_t(std::uint64_t)> meetings(const SessionState& state) {
  std::vector<std::uint64_t> every{eval_every(state)};
  for (const std::int64_t steps : {state.config.checkpoint_every, state.config.check_every})
    every.push_back(static_cast<std::uint64_t>(steps));
  return [every, total = state.sizes.total_steps](std::uint64_t done) {
    std::uint64_t next = done < total ? total : done + 1;
    for (const std::uint64_t steps : every) next = std::min(next, (done / steps + 1) * steps);
    return next;
  };
}

/// A server's program is one of the host, whatever the workers' is.
engine::RunnerKind runner_of(const SessionState& state) {
  const engine::RunnerKind asked = state.config.runner;
  return state.serves() && asked == engine::RunnerKind::graph ? engine::RunnerKind::lanes : asked;
}

}  // namespace

std::unique_ptr<engine::Runner> plan_step(SessionState& state, comm::Update& update,
                                          comm::Concurrency concurrent) {
  const engine::TrainBinding binding = bind_step(state);
  const engine::ControlLayout& control = binding.control_layout;
  const engine::ParamLayout& layout = state.layout;
  const std::size_t trained = layout.trained_floats;

  comm::StepParts parts;
  if (!state.serves()) {
    engine::TrainBinding computing = binding;
    if (state.skips()) computing.step = state.batch_counter.as<std::uint64_t>();
    parts.compute = compute_tasks(state, computing);
  }
  for (const comm::ParamSpan& span : update.spans()) {
    if (span.end > trained) break;  // what local steps exchange besides
    parts.update.push_back(state.backend->update_task(
        bind_update(state, binding, span, state.decay_sums.as<double>() + parts.update.size()),
        state.network.params, layout));
  }
  if (double* const norm = gradient_norm(state)) {
    parts.before_updates = state.backend->gradient_norm_task({binding.grads, trained, norm});
  }
  engine::AdvanceBinding advance;
  advance.control = binding.control;
  advance.control_layout = control;
  advance.global_batch = binding.global_batch;
  advance.decay_sums = {state.decay_sums.as<const double>(), parts.update.size()};
  advance.step = binding.step;
  advance.gradient_norm = gradient_norm(state);
  if (layout.running_floats > 0) {
    parts.finish.push_back(
        state.backend->running_task(bind_running(state, binding), state.network.params, layout));
  }
  parts.finish.push_back(state.backend->advance_task(advance, state.records));
  if (state.skips() && !state.serves()) {
    // Versions are made without this worker: its samples go on where it has come to.
    parts.finish.push_back(
        state.backend->increment_task("count batch", state.batch_counter.as<std::uint64_t>()));
  }
  parts.control = {binding.control, control.floats()};
  parts.grads = {binding.grads, trained};
  parts.params = {state.state[optim::StateRole::weights].as<float>(), trained};
  parts.decay_sums = {state.decay_sums.as<double>(), parts.update.size()};
  parts.step = binding.step;
  parts.next_meeting = meetings(state);

  engine::StepProgram program("train");
  update.append(program, std::move(parts), concurrent);
  program.finalize();
  return state.backend->runner(std::move(program), runner_of(state), regions_of(state));
}

/// On one lane: it runs between steps, when nothing else does.
std::unique_ptr<engine::Runner> plan_look(SessionState& state) {
  const engine::ParamLayout& layout = state.layout;
  const auto* const weights = state.state[optim::StateRole::weights].as<const float>();
  const float* const grads = state.gradients.as<const float>() + control_layout(state).floats();
  const std::size_t params = layout.entries.size(), trained = trained_params(state.network.params);
  auto* const counts = state.value_counts.as<engine::ValueCounts>() + state.tower->observed().size();
  std::vector<engine::CountBinding> variables, gradients;
  for (std::size_t p = 0; p < params; ++p) {
    const std::size_t at = layout.entries[p].offset;
    const std::vector<engine::ValueRun> runs = state.tower->values_of(p);
    variables.push_back({weights + at, runs, counts + p});
    if (p < trained) gradients.push_back({grads + at, runs, counts + params + p});
  }
  engine::StepProgram program("summary");
  program.run(engine::kCompute, state.backend->count_task("count variables", variables));
  program.run(engine::kCompute, state.backend->count_task("count gradients", gradients));
  program.run(engine::kCompute, state.backend->gradient_norm_task(
                                    {grads, layout.trained_floats, state.gradient_norm.as<double>()}));
  program.finalize();
  return state.backend->runner(std::move(program), state.config.runner, regions_of(state));
}

}  // namespace cifar_mpi::train
