#include "cifar_mpi/train/session.hpp"

#include <fmt/core.h>

#include <cmath>
#include <cstring>
#include <span>
#include <sstream>

#include "cifar_mpi/base/atomic_file.hpp"
#include "cifar_mpi/base/build_info.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/optim/optimizer.hpp"
#include "cifar_mpi/run/run_directory.hpp"
#include "run/resume.hpp"
#include "run/run_checkpoints.hpp"
#include "train/proven_device.hpp"
#include "train/resolved.hpp"
#include "train/roles.hpp"
#include "train/state.hpp"

namespace cifar_mpi::train {
namespace {

/// Before anything is written: what is not to be kept any more may take the room for it.
void make_room(const SessionState& state) {
  try {
    run::begin_retention(*state.run, state.progress.step, retention_of(state.config));
  } catch (const Error& error) {
    state.log.warn(error.what());
  }
}

/// Keeps the configuration for people, and so proves that files can be written to the run directory before
/// hours of work depend on it. Every start has its own; that of the start before stays until then.
void write_configuration(const SessionState& state) {
  write_atomically(*state.run / "config.toml", std::as_bytes(std::span(state.config.text)));
}

void open_dataset(SessionState& state) {
  check(state.config);
  state.dataset.emplace(state.config.data);
  state.info = state.dataset->info();
  state.sizes = resolve_sizes(state.config, state.world.size(), state.info);
  state.network = make_network(state.config.model, state.info, augment_spec(state.config, state.info.image),
                               state.config.data);
  for (model::Param& param : state.network.params) {
    if (param.weight_decay > 0.0f) param.weight_decay = static_cast<float>(state.config.weight_decay);
  }
  // Builds the schedule once, so that its own checks are part of this phase.
  optim::Schedule(schedule_spec(state.config, state.sizes, state.info.train_count));
}

/// What was adopted from a checkpoint gives way where it does not work here; the user is told of it as of any
/// other change.
void plan_on_this_device(SessionState& state, const comm::PlatformFactory& make_platform) {
  try {
    plan_device(state, make_platform);
  } catch (const Error& error) {
    if ((!state.adopted_precision && !state.adopted_conv) || error.kind() != ErrorKind::device) throw;
    if (state.adopted_precision) state.config.precision = engine::Precision::automatic;
    if (state.adopted_conv) state.config.conv = engine::ConvMethod::automatic;
    plan_device(state, make_platform);
  }
}

void open_update_on_these_nodes(SessionState& state) {
  try {
    open_update(state);
  } catch (const comm::AgreedError&) {
    if (!state.adopted_all_reduce) throw;
    state.config.all_reduce = "auto";
    open_update(state);
  }
}

void load_samples(SessionState& state) {
  if (state.serves()) return;
  state.samples = ResidentData(*state.backend, *state.dataset, data::Split::train, sample_order(state).held(),
                               state.part_of(state.info.train_count));
}

/// Where this worker's samples go on. A run that did not count them by worker gave as many to each.
void write_batches(SessionState& state) {
  if (!state.skips()) return;
  const Sizes& sizes = state.sizes;
  const auto workers = static_cast<std::uint64_t>(sizes.workers);
  std::uint64_t mine =
      (state.progress.step * static_cast<std::uint64_t>(sizes.aggregated) + workers - 1) / workers;
  if (!state.progress.batches.empty() && !state.serves())
    mine = state.progress.batches[static_cast<std::size_t>(state.world.rank())];
  state.backend->copy(state.batch_counter.data(), reinterpret_cast<const std::byte*>(&mine), sizeof mine);
}

/// The blocks, the finalized programs on them, and the values they begin with.
void build_programs(SessionState& state, const run::Start& start) {
  allocate_blocks(state);
  write_step(state, state.progress.step);  // before the step is planned: servers count from there
  write_batches(state);
  const comm::Concurrency concurrent{.branches = state.config.side_lane};
  const bool local = state.config.update == comm::UpdateKind::local;
  if (local) state.local_steps = plan_local_steps(state, *state.update, concurrent);
  state.step = local && state.progress.step >= state.sizes.local_from
                   ? std::move(state.local_steps)
                   : plan_step(state, *state.update, concurrent);
  if (state.config.summary_every > 0 && state.world.rank() == 0) state.look = plan_look(state);
  if (state.serves()) {
    state.evaluator.emplace(*state.backend, state.world, *state.dataset);
    state.dataset.reset();
    return;
  }
  state.state.write(*state.backend, *state.tower, start.state);
  state.evaluator.emplace(*state.backend, *state.tower, *state.arena, state.world, *state.dataset,
                          state.part_of(state.info.test_count), state.network.augment,
                          state.sizes.batch / state.sizes.parts,
                          state.state[optim::StateRole::average].as<const float>(),
                          state.config.runner == engine::RunnerKind::lanes ? engine::RunnerKind::lanes
                                                                           : engine::RunnerKind::automatic);
  state.dataset.reset();
}

run::StartRequest start_request(const SessionState& state) {
  const TrainConfig& config = state.config;
  return {state.run,
          config.resume,
          config.data,
          config.global_batch != 0,
          run_fingerprint(config, state.sizes, state.info),
          unrecorded_fingerprint(),
          config.optimizer.kind,
          has_outer_momentum(config),
          config.init_from,
          std::string(model::classifier_of(state.network.net)),
          state.sizes.aggregated};
}

run::StartedRun started_run(const SessionState& state) {
  return {state.progress.resolved, state.tower->plan_text(), state.config.reproducible, state.config.shuffle,
          state.info.train_count,  state.sizes.global_batch, state.sizes.workers,       state.skips()};
}

/// What is not plain gradient descent on the labels as they are.
std::string optimizer_text(const TrainConfig& config) {
  std::string text;
  if (config.optimizer.kind != optim::OptimizerKind::sgd)
    text += concat("; optimizer ", optim::describe(config.optimizer));
  if (config.clip_norm > 0.0) text += concat("; gradients clipped to norm ", config.clip_norm);
  if (config.label_smoothing > 0.0) text += concat("; labels smoothed by ", config.label_smoothing);
  return text;
}

/// "128 per rank", "4 x 128 per rank".
std::string batch_text(const SessionState& state) {
  const char* const each = state.sizes.workers < state.world.size() ? " per worker" : " per rank";
  if (state.config.accumulate == 1) return concat(state.sizes.batch, each);
  return concat(state.config.accumulate, " x ", state.sizes.batch / state.config.accumulate, each);
}

/// "all-reduce window", "update by server, rank 3".
std::string update_text(const SessionState& state) {
  const bool sums = state.config.update != comm::UpdateKind::server;
  return concat(sums ? "all-reduce " : "update by ", state.update->name());
}

std::string local_text(const SessionState& state) {
  const optim::LocalSteps& local = state.config.local;
  std::string from;
  if (state.sizes.local_from > 0)
    from = concat(" from step ", state.sizes.local_from + 1,
                  " on, before it gradients are exchanged in every step");
  return concat("update: local, ", local.steps, local.steps == 1 ? " step" : " steps",
                " of each rank between averagings, outer ", optim::describe(local), from,
                "; log, evaluation, checkpoints and stops wait for an averaging");
}

/// What several ranks make of the default batch, which is one of each rank.
std::string global_batch_text(const SessionState& state) {
  const Sizes& sizes = state.sizes;
  const int one = sizes.batch;
  return concat("batch: ", sizes.aggregated, " ranks with ", one, " samples each make a global batch of ",
                sizes.global_batch, ", so an epoch has ", std::llround(sizes.steps_per_epoch),
                " steps; --global-batch ", one,
                " keeps the batch, the steps and the accuracy of one rank, --lr-scaling sqrt ",
                "--warmup-epochs 5 adapts the rate to the larger batch, which needs more epochs");
}

constexpr double kHighForAdam = 0.02;

/// Rank 0 says it, and it is a worker: a server does not know all of this.
void describe_run(const SessionState& state, const run::Start& start) {
  if (state.serves()) return;
  const TrainConfig& config = state.config;
  const data::DatasetInfo& info = state.info;
  const Log& log = state.log;
  log.info(concat("cifar_mpi ", version(), ": ", state.world.size(), " rank",
                  state.world.size() == 1 ? "" : "s", " on ", state.backend->description()));
  log.info(concat("data: ", config.data, ", ", info.train_count, " training and ", info.test_count,
                  " test images of ", to_string(info.image), ", ", info.classes(), " classes, shuffle ",
                  to_string(config.shuffle), ", augment ", to_string(config.augment)));
  log.info(concat("model: ", config.model, ", ", model::param_count(state.network.params), " parameters, ",
                  to_string(config.precision), "; batch ", batch_text(state), ", global batch ",
                  state.sizes.global_batch, "; ", update_text(state), "; seed ", config.seed));
  log.info(concat(
      "learning rate: ", optim::Schedule(schedule_spec(config, state.sizes, info.train_count)).describe(),
      "; EMA ", config.ema_decay, "; weight decay ", config.weight_decay, optimizer_text(config)));
  if (config.optimizer.kind == optim::OptimizerKind::adamw && config.lr > kHighForAdam) {
    log.warn(concat("--lr ", config.lr, " is high for --optimizer adamw, whose steps do not shrink with the ",
                    "gradient; 0.001 is usual"));
  }
  if (config.update == comm::UpdateKind::local) log.info(local_text(state));
  if (const std::string note = state.update->note(); !note.empty()) log.warn(note);
  if (state.skips() && !config.aggregation.asynchronous && config.shuffle == data::Shuffle::shard) {
    log.info(
        "note: with --aggregate below all workers one that is always late never makes a step, and with "
        "--shuffle shard nobody else has its samples; --shuffle global hands out all samples anew in each "
        "pass");
  }
  if (const int unused = state.world.unused_cores(); unused > 0) {
    log.info(concat("note: ", unused,
                    " cores of this node are in no rank's affinity mask; mpirun --bind-to none frees them"));
  }
  const std::string from =
      start.initialized_from.empty()
          ? std::string()
          : concat("; initialized from the averaged weights of ", start.initialized_from);
  if (!start.resumed) {
    if (state.sizes.aggregated > 1 && config.global_batch == 0 && config.lr_scaling == optim::LrScaling::none)
      log.info(global_batch_text(state));
    log.info(concat(
        "starting: ", state.sizes.total_steps, " steps, ",
        fmt::format("{:.1f}", static_cast<double>(state.sizes.total_steps) / state.sizes.steps_per_epoch),
        " epochs; run directory ", config.run_dir, from));
    return;
  }
  log.info(concat("resuming at step ", state.progress.step, " of ", state.sizes.total_steps, from,
                  config.init_from.empty() ? "" : "; --init-from is not read again"));
  for (const std::string& note : run::resume_notes(start, started_run(state))) log.info(note);
}

/// Rank 0 says it, and it computes.
void describe_kernels(const SessionState& state, const std::vector<std::string>& slower) {
  if (state.serves()) return;
  state.log.info("kernels:");
  std::istringstream lines(state.tower->plan_text());
  for (std::string line; std::getline(lines, line);) state.log.info(concat("  ", line));
  for (const std::string& line : slower) state.log.warn(concat("slower kernel: ", line));
}

}  // namespace

std::unique_ptr<SessionState> set_up(TrainConfig config, const Directory& run, const comm::World& world,
                                     const Log& log, const comm::PlatformFactory& make_platform,
                                     std::atomic<int>& requests, const SelfCheck* check) {
  auto owner = std::make_unique<SessionState>(std::move(config), world, log, requests);
  SessionState& state = *owner;
  state.run = &run;
  world.together([&] { open_dataset(state); });
  require_equal_data(world, *state.dataset, state.config.data);
  run::StartRequest asked = start_request(state);
  const run::Start start = run::find_start(asked, initial_tensors(state.network.params, state.config.seed),
                                           state.network.params, world, log);
  world.together([&] {
    if (start.resumed) {
      require_possible(start.progress, start.name, state.config, state.sizes);
    }
  });
  state.progress.step = start.progress.step;
  if (start.progress.batches.size() == static_cast<std::size_t>(state.sizes.workers) && state.skips())
    state.progress.batches = start.progress.batches;
  state.initialized_from = start.initialized_from;
  adopt(state, start.progress.resolved);
  resolve_threads(state);
  part_workers(state);
  const comm::PlatformFactory platform = proven_platform(state, make_platform, check);
  world.together([&] { plan_on_this_device(state, platform); });
  const std::vector<std::string> slower = agree_on_kernels(state);
  world.together([&] { load_samples(state); });
  share_plan(state);
  find_dataset_moments(state.network.augment, *state.dataset, world);
  run::add_dataset_content(asked, state.samples.fingerprint(), start, world);
  state.progress.seed = state.config.seed;
  state.progress.identity = std::move(asked.fingerprint);
  world.together([&] {
    if (world.rank() != 0) return;
    make_room(state);
    write_configuration(state);
  });
  open_update_on_these_nodes(state);
  world.together([&] { build_programs(state, start); });
  share_state(state);
  state.progress.resolved = resolved_settings(state);
  describe_run(state, start);
  describe_kernels(state, slower);
  describe_cores(state);
  return owner;
}

Session::Session(TrainConfig config, const Directory& run, const comm::World& world, const Log& log,
                 const comm::PlatformFactory& make_platform, std::atomic<int>& requests,
                 const SelfCheck* check)
    : state_(set_up(std::move(config), run, world, log, make_platform, requests, check)) {}

Session::~Session() = default;

void Session::show_to(watch::Watchdog& watchdog) {
  state_->heart = &watchdog.heart();
  state_->heart->spare = state_->skips() && !state_->serves();
  state_->show_step = [state = state_.get(), &watchdog] {
    watchdog.name_tasks(state->step->program());
    state->step->show_in(state->heart->progress);
  };
  state_->show_step();
  state_->evaluator->show_in(state_->heart->progress);
}

void Session::run(const std::string& last_end) { run_loop(*state_, last_end); }

}  // namespace cifar_mpi::train
