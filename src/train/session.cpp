#include "cifar_mpi/train/session.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <sstream>

#include "cifar_mpi/base/atomic_file.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/config/options.hpp"
#include "cifar_mpi/run/run_directory.hpp"
#include "cifar_mpi/step/step.hpp"
#include "run/resume.hpp"
#include "run/run_checkpoints.hpp"
#include "train/session_state.hpp"

namespace cifar_mpi::train {
namespace {

/// Warns at the start of what would otherwise show at the first checkpoint. Does not see a quota.
void warn_of_little_space(const step::Plan& plan) {
  std::size_t floats = 0;
  for (const model::Param& param : plan.network.params)
    floats += static_cast<std::size_t>(param.shape.count());
  const auto rows = step::state_rows(plan.config).size();
  constexpr double kWithRest = 1.1, kMiB = 1024.0 * 1024.0;  // texts and headers of the file
  const double checkpoint = kWithRest * static_cast<double>(floats * rows * sizeof(float));
  const std::size_t there = run::list_checkpoints(*plan.run).size();
  const auto more = static_cast<double>(plan.config.keep) + 1.0 - static_cast<double>(there);
  const double needed =
      checkpoint * std::max(more, 1.0);  // a new one is written before an old one is removed
  const std::optional<double> free = run::free_bytes(*plan.run);
  if (!free || *free >= needed) return;
  plan.log.warn(
      fmt::format("{} has {:.1f} MiB free, but the checkpoints of this run need {:.1f} MiB more; free some, "
                  "or give a smaller --keep",
                  plan.run->path(), *free / kMiB, needed / kMiB));
}

/// Before anything is written: checkpoints past their keep limit may take the space that it needs.
void make_room(const step::Plan& plan) {
  try {
    run::begin_retention(*plan.run, plan.progress.step, step::retention_of(plan.config));
  } catch (const Error& error) {
    plan.log.warn(error.what());
  }
}

/// Writes the configuration for people, which also proves that the run directory is writable before hours of
/// work depend on it. Every start writes its own; that of the previous start stays until then.
void write_configuration(const step::Plan& plan) {
  write_atomically(*plan.run / "config.toml", plan.config.text);
}

void open_dataset(step::Plan& plan, std::optional<data::DatasetFile>& dataset) {
  check(plan.config);
  dataset.emplace(plan.config.data);
  step::plan_for(plan, dataset->info());
  // Builds the schedule once, so that its checks are part of this phase.
  optim::Schedule(config::schedule_spec(plan.config, plan.sizes, plan.info.train_count));
}

/// Settings adopted from a checkpoint are dropped if they do not work here; the log reports it like any other
/// change.
void plan_on_this_device(step::Plan& plan, step::Device& device, const comm::PlatformFactory& make_platform) {
  try {
    step::plan_device(plan, device, make_platform);
  } catch (const Error& error) {
    if ((!plan.adopted.precision && !plan.adopted.conv) || error.kind() != ErrorKind::device) throw;
    if (plan.adopted.precision) plan.config.precision = engine::Precision::automatic;
    if (plan.adopted.conv) plan.config.conv = engine::ConvMethod::automatic;
    step::plan_device(plan, device, make_platform);
  }
}

void open_update_on_these_nodes(step::Plan& plan, const step::Device& device, step::Blocks& blocks) {
  try {
    step::open_update(plan, device, blocks);
  } catch (const comm::AgreedError&) {
    if (!plan.adopted.all_reduce) throw;
    plan.config.all_reduce = "auto";
    step::open_update(plan, device, blocks);
  }
}

void load_samples(const step::Plan& plan, step::Device& device, const data::DatasetFile& dataset) {
  if (plan.serves()) return;
  device.samples =
      evaluation::ResidentData(*device.backend, dataset, data::Split::train, step::sample_order(plan).held(),
                               plan.part_of(plan.info.train_count));
}

/// Where this worker's samples continue. A run that did not count them by worker gave each the same number.
void write_batches(const step::Plan& plan, const step::Device& device, step::Blocks& blocks) {
  if (!plan.sizes.partial_aggregation()) return;
  const config::Sizes& sizes = plan.sizes;
  const auto workers = static_cast<std::uint64_t>(sizes.workers);
  std::uint64_t mine =
      (plan.progress.step * static_cast<std::uint64_t>(sizes.aggregated) + workers - 1) / workers;
  if (!plan.progress.batches.empty() && !plan.serves())
    mine = plan.progress.batches[static_cast<std::size_t>(plan.world.rank())];
  device.backend->copy(blocks.batch_counter.data(), &mine, sizeof mine);
}

/// The program of the next step, and those after it.
void build_steps(SessionState& state) {
  const step::Plan& plan = state.plan;
  Programs& programs = state.programs;
  const comm::Concurrency concurrent{.branches = plan.config.side_lane};
  const bool local = plan.config.update == comm::UpdateKind::local;
  const std::uint64_t begin = std::min(plan.progress.step, plan.sizes.total_steps - 1);
  for (std::uint64_t from = begin; from < plan.sizes.total_steps; from = step::program_end(plan, from)) {
    Programs::Next next{from, {}, step::step_kind(plan, from), {}};
    if (local && from >= plan.sizes.local_from) {
      next.step = step::plan_local_steps(state.context(), concurrent);
      next.text = concat(plan.config.local.steps, " steps of each rank between averagings");
    } else {
      const bool is_new = std::ranges::none_of(
          programs.later, [&](const Programs::Next& other) { return other.kind == next.kind; });
      if (is_new) next.step = step::plan_step(state.context(), concurrent, next.kind);
      const Extent& input = step::network_for(plan, next.kind).input;
      next.text = concat("images of ", input.height, 'x', input.width, frozen_text(plan, next.kind));
    }
    programs.later.push_back(std::move(next));
  }
  programs.change();
}

/// The blocks, the finalized programs on them, and the initial values.
void build_programs(SessionState& state, const run::Start& start, const data::DatasetFile& dataset) {
  step::Plan& plan = state.plan;
  step::Device& device = state.device;
  step::Blocks& blocks = state.blocks;
  Programs& programs = state.programs;
  step::allocate_blocks(plan, device, blocks);
  step::write_step(device, blocks,
                   plan.progress.step);  // before the step is planned: servers count from there
  write_batches(plan, device, blocks);
  build_steps(state);
  if (plan.config.summary_every > 0 && plan.world.rank() == 0)
    programs.histograms = step::plan_histograms(state.context());
  if (plan.serves()) {
    programs.evaluator.emplace(*device.backend, plan.world, dataset);
    return;
  }
  blocks.state.write(*device.backend, *device.tower, start.state);
  evaluation::EvaluatorSpec spec;
  spec.params = blocks.state[optim::StateRole::average].as<const float>();
  spec.augment = plan.network.augment;
  spec.views = plan.config.views;
  spec.batch = plan.sizes.batch / plan.sizes.parts;
  if (plan.config.runner == engine::RunnerKind::lanes) spec.kind = engine::RunnerKind::lanes;
  programs.evaluator.emplace(*device.backend, *device.tower, *device.arena, plan.world, dataset,
                             plan.part_of(plan.info.test_count), spec);
}

run::StartRequest start_request(const step::Plan& plan) {
  const config::TrainConfig& config = plan.config;
  return {plan.run,
          config.resume,
          config.data,
          config.global_batch != 0,
          config::run_fingerprint(config, plan.sizes, plan.info),
          config::unrecorded_fingerprint(),
          config.optimizer.kind,
          step::has_outer_momentum(config),
          config.lookahead > 0,
          config.init_from,
          std::string(model::classifier_of(plan.network.net)),
          config::items_of(config.allow_change),
          config::items_of(config::changeable_options()),
          plan.sizes.aggregated};
}

}  // namespace

std::unique_ptr<SessionState> set_up(config::TrainConfig config, const Directory& run,
                                     const comm::World& world, const Log& log,
                                     const comm::PlatformFactory& make_platform, std::atomic<int>& requests,
                                     const selfcheck::SelfCheck* check) {
  auto owner = std::make_unique<SessionState>(std::move(config), world, log, requests);
  SessionState& state = *owner;
  step::Plan& plan = state.plan;
  step::Device& device = state.device;
  step::Blocks& blocks = state.blocks;
  std::optional<data::DatasetFile> dataset;  // open during set-up only
  plan.run = &run;
  world.together([&] { open_dataset(plan, dataset); });
  evaluation::require_equal_data(world, *dataset, plan.config.data);
  run::StartRequest asked = start_request(plan);
  evaluation::find_dataset_moments(plan.network.augment, *dataset, world);
  const auto initial = [&] {
    std::vector<run::NamedTensor> tensors =
        evaluation::initial_tensors(plan.network.params, plan.config.seed);
    world.together([&] { evaluation::whiten(tensors, plan.network, *dataset); });
    return tensors;
  };
  const run::Start start = run::find_start(asked, initial, plan.network.params, world, log);
  world.together([&] {
    if (start.resumed) {
      require_possible(start.progress, start.name, plan.config, plan.sizes);
    }
  });
  plan.progress.step = start.progress.step;
  if (start.progress.batches.size() == static_cast<std::size_t>(plan.sizes.workers) &&
      plan.sizes.partial_aggregation())
    plan.progress.batches = start.progress.batches;
  plan.initialized_from = start.initialized_from;
  plan.changes = start.changes;
  std::istringstream changes(start.changes);
  for (std::string line; std::getline(changes, line);)
    plan.config.text += concat("# changed at ", line, '\n');
  adopt(plan, start.progress.resolved);
  step::resolve_threads(plan);
  step::part_workers(plan);
  const comm::PlatformFactory platform = selfcheck::proven_platform(plan, make_platform, check);
  world.together([&] { plan_on_this_device(plan, device, platform); });
  const std::vector<std::string> slower = step::agree_on_kernels(plan, device);
  world.together([&] { load_samples(plan, device, *dataset); });
  step::share_kernels(plan, device);
  run::add_dataset_content(asked, device.samples.fingerprint(), start, world);
  plan.progress.seed = plan.config.seed;
  plan.progress.identity = std::move(asked.fingerprint);
  world.together([&] {
    if (world.rank() != 0) return;
    make_room(plan);
    warn_of_little_space(plan);
    write_configuration(plan);
  });
  open_update_on_these_nodes(plan, device, blocks);
  world.together([&] { build_programs(state, start, *dataset); });
  step::share_state(plan, device, blocks.state);
  plan.progress.resolved = resolved_settings(plan, *blocks.update);
  describe_run(plan, device, *blocks.update, start);
  describe_kernels(plan, device, slower);
  step::describe_cores(plan, *device.backend);
  return owner;
}

Session::Session(config::TrainConfig config, const Directory& run, const comm::World& world, const Log& log,
                 const comm::PlatformFactory& make_platform, std::atomic<int>& requests,
                 const selfcheck::SelfCheck* check)
    : state_(set_up(std::move(config), run, world, log, make_platform, requests, check)) {}

Session::~Session() = default;

void Session::show_to(watch::Watchdog& watchdog) {
  state_->heart = &watchdog.heart();
  state_->heart->spare = state_->plan.sizes.partial_aggregation() && !state_->plan.serves();
  state_->show_step = [state = state_.get(), &watchdog] {
    watchdog.name_tasks(state->programs.step->program());
    state->programs.step->show_in(state->heart->progress);
  };
  state_->show_step();
  state_->programs.evaluator->show_in(state_->heart->progress);
}

void Session::run(const std::string& last_end) { run_loop(*state_, last_end); }

}  // namespace cifar_mpi::train
