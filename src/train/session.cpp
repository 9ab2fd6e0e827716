#include "cifar_mpi/train/session.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <sstream>

#include "cifar_mpi/base/atomic_file.hpp"
#include "cifar_mpi/base/build_info.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/optim/optimizer.hpp"
#include "cifar_mpi/run/run_directory.hpp"
#include "cifar_mpi/train/options.hpp"
#include "run/resume.hpp"
#include "run/run_checkpoints.hpp"
#include "train/proven_device.hpp"
#include "train/resolved.hpp"
#include "train/roles.hpp"
#include "train/session_state.hpp"

namespace cifar_mpi::train {
namespace {

/// Says early what would otherwise show at the first checkpoint. A quota is not seen here.
void warn_of_little_space(const Plan& plan) {
  std::size_t floats = 0;
  for (const model::Param& param : plan.network.params)
    floats += static_cast<std::size_t>(param.shape.count());
  const auto rows = optim::state_rows(plan.config.optimizer.kind, has_outer_momentum(plan.config)).size();
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

/// Before anything is written: what is not to be kept any more may take the room for it.
void make_room(const Plan& plan) {
  try {
    run::begin_retention(*plan.run, plan.progress.step, retention_of(plan.config));
  } catch (const Error& error) {
    plan.log.warn(error.what());
  }
}

/// Keeps the configuration for people, and so proves that files can be written to the run directory before
/// hours of work depend on it. Every start has its own; that of the start before stays until then.
void write_configuration(const Plan& plan) {
  write_atomically(*plan.run / "config.toml", std::as_bytes(std::span(plan.config.text)));
}

void open_dataset(Plan& plan, std::optional<data::DatasetFile>& dataset) {
  check(plan.config);
  dataset.emplace(plan.config.data);
  plan_for(plan, dataset->info());
  // Builds the schedule once, so that its own checks are part of this phase.
  optim::Schedule(schedule_spec(plan.config, plan.sizes, plan.info.train_count));
}

/// What was adopted from a checkpoint gives way where it does not work here; the user is told of it as of any
/// other change.
void plan_on_this_device(Plan& plan, Device& device, const comm::PlatformFactory& make_platform) {
  try {
    plan_device(plan, device, make_platform);
  } catch (const Error& error) {
    if ((!plan.adopted.precision && !plan.adopted.conv) || error.kind() != ErrorKind::device) throw;
    if (plan.adopted.precision) plan.config.precision = engine::Precision::automatic;
    if (plan.adopted.conv) plan.config.conv = engine::ConvMethod::automatic;
    plan_device(plan, device, make_platform);
  }
}

void open_update_on_these_nodes(Plan& plan, const Device& device, Blocks& blocks) {
  try {
    open_update(plan, device, blocks);
  } catch (const comm::AgreedError&) {
    if (!plan.adopted.all_reduce) throw;
    plan.config.all_reduce = "auto";
    open_update(plan, device, blocks);
  }
}

void load_samples(const Plan& plan, Device& device, const data::DatasetFile& dataset) {
  if (plan.serves()) return;
  device.samples = ResidentData(*device.backend, dataset, data::Split::train, sample_order(plan).held(),
                                plan.part_of(plan.info.train_count));
}

/// Where this worker's samples go on. A run that did not count them by worker gave as many to each.
void write_batches(const Plan& plan, const Device& device, Blocks& blocks) {
  if (!plan.sizes.partial_aggregation()) return;
  const Sizes& sizes = plan.sizes;
  const auto workers = static_cast<std::uint64_t>(sizes.workers);
  std::uint64_t mine =
      (plan.progress.step * static_cast<std::uint64_t>(sizes.aggregated) + workers - 1) / workers;
  if (!plan.progress.batches.empty() && !plan.serves())
    mine = plan.progress.batches[static_cast<std::size_t>(plan.world.rank())];
  device.backend->copy(blocks.batch_counter.data(), reinterpret_cast<const std::byte*>(&mine), sizeof mine);
}

/// The blocks, the finalized programs on them, and the values they begin with.
void build_programs(SessionState& state, const run::Start& start, const data::DatasetFile& dataset) {
  Plan& plan = state.plan;
  Device& device = state.device;
  Blocks& blocks = state.blocks;
  Programs& programs = state.programs;
  allocate_blocks(plan, device, blocks);
  write_step(device, blocks, plan.progress.step);  // before the step is planned: servers count from there
  write_batches(plan, device, blocks);
  const comm::Concurrency concurrent{.branches = plan.config.side_lane};
  const bool local = plan.config.update == comm::UpdateKind::local;
  if (local) programs.local_steps = plan_local_steps(state.context(), concurrent);
  programs.step = local && plan.progress.step >= plan.sizes.local_from
                      ? std::move(programs.local_steps)
                      : plan_step(state.context(), concurrent);
  if (plan.config.summary_every > 0 && plan.world.rank() == 0)
    programs.histograms = plan_histograms(state.context());
  if (plan.serves()) {
    programs.evaluator.emplace(*device.backend, plan.world, dataset);
    return;
  }
  blocks.state.write(*device.backend, *device.tower, start.state);
  programs.evaluator.emplace(*device.backend, *device.tower, *device.arena, plan.world, dataset,
                             plan.part_of(plan.info.test_count), plan.network.augment,
                             plan.sizes.batch / plan.sizes.parts,
                             blocks.state[optim::StateRole::average].as<const float>(),
                             plan.config.runner == engine::RunnerKind::lanes ? engine::RunnerKind::lanes
                                                                             : engine::RunnerKind::automatic);
}

run::StartRequest start_request(const Plan& plan) {
  const TrainConfig& config = plan.config;
  return {plan.run,
          config.resume,
          config.data,
          config.global_batch != 0,
          run_fingerprint(config, plan.sizes, plan.info),
          unrecorded_fingerprint(),
          config.optimizer.kind,
          has_outer_momentum(config),
          config.init_from,
          std::string(model::classifier_of(plan.network.net)),
          items_of(config.allow_change),
          items_of(changeable_options()),
          plan.sizes.aggregated};
}

run::StartedRun started_run(const Plan& plan, const lower::Tower& tower) {
  return {plan.progress.resolved,   tower.plan_text(),
          plan.config.reproducible, plan.config.shuffle,
          plan.info.train_count,    plan.sizes.global_batch,
          plan.sizes.workers,       plan.sizes.partial_aggregation()};
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
std::string batch_text(const Plan& plan) {
  const char* const each = plan.sizes.workers < plan.world.size() ? " per worker" : " per rank";
  if (plan.config.accumulate == 1) return concat(plan.sizes.batch, each);
  return concat(plan.config.accumulate, " x ", plan.sizes.batch / plan.config.accumulate, each);
}

/// "all-reduce window", "update by server, rank 3".
std::string update_text(const Plan& plan, const comm::Update& update) {
  const bool sums = plan.config.update != comm::UpdateKind::server;
  return concat(sums ? "all-reduce " : "update by ", update.name());
}

std::string local_text(const Plan& plan) {
  const optim::LocalSteps& local = plan.config.local;
  std::string from;
  if (plan.sizes.local_from > 0)
    from = concat(" from step ", plan.sizes.local_from + 1,
                  " on, before it gradients are exchanged in every step");
  return concat("update: local, ", local.steps, local.steps == 1 ? " step" : " steps",
                " of each rank between averagings, outer ", optim::describe(local), from,
                "; log, evaluation, checkpoints and stops wait for an averaging");
}

/// What several ranks make of the default batch, which is one of each rank.
std::string global_batch_text(const Plan& plan) {
  const Sizes& sizes = plan.sizes;
  const int one = sizes.batch;
  return concat("batch: ", sizes.aggregated, " ranks with ", one, " samples each make a global batch of ",
                sizes.global_batch, ", so an epoch has ", std::llround(sizes.steps_per_epoch),
                " steps; --global-batch ", one,
                " keeps the batch, the steps and the accuracy of one rank, --lr-scaling sqrt ",
                "--warmup-epochs 5 adapts the rate to the larger batch, which needs more epochs");
}

/// "3120 steps, 7.987 epochs": the length in epochs is that of the whole steps.
std::string length_text(const Plan& plan) {
  const auto steps = static_cast<double>(plan.sizes.total_steps);
  const double made = steps / plan.sizes.steps_per_epoch;
  std::string text = concat(plan.sizes.total_steps, plan.sizes.total_steps == 1 ? " step, " : " steps, ",
                            fmt::format("{:.4g}", made), " epochs");
  if (plan.config.steps == 0 && made < plan.config.epochs)
    text += concat(" (whole steps of --epochs ", exact(plan.config.epochs), ')');
  return text;
}

/// Images larger than the network's input are cut, which costs accuracy where their object fills them.
std::string cut_text(const Plan& plan) {
  const Extent &image = plan.info.image, &input = plan.network.net.input;
  if (image.height <= input.height && image.width <= input.width) return {};
  return concat("; the network sees a part of ", input.height, 'x', input.width,
                " (--input-size): random in training, the centre in evaluation");
}

constexpr double kHighForAdam = 0.02;

/// Rank 0 says it, and it is a worker: a server does not know all of this.
void describe_run(const Plan& plan, const Device& device, const comm::Update& update,
                  const run::Start& start) {
  if (plan.serves()) return;
  const TrainConfig& config = plan.config;
  const data::DatasetInfo& info = plan.info;
  const Log& log = plan.log;
  log.info(concat("cifar_mpi ", version(), ": ", plan.world.size(), " rank",
                  plan.world.size() == 1 ? "" : "s", " on ", device.backend->description()));
  log.info(concat("data: ", config.data, ", ", info.train_count, " training and ", info.test_count,
                  " test images of ", to_string(info.image), ", ", info.classes(), " classes, shuffle ",
                  to_string(config.shuffle), ", augment ", to_string(config.augment), cut_text(plan)));
  log.info(concat("model: ", config.model, ", ", model::param_count(plan.network.params), " parameters, ",
                  to_string(config.precision), "; batch ", batch_text(plan), ", global batch ",
                  plan.sizes.global_batch, "; ", update_text(plan, update), "; seed ", config.seed));
  log.info(concat(
      "learning rate: ", optim::Schedule(schedule_spec(config, plan.sizes, info.train_count)).describe(),
      "; EMA ", config.ema_decay, "; weight decay ", config.weight_decay, optimizer_text(config)));
  if (config.optimizer.kind == optim::OptimizerKind::adamw && config.lr > kHighForAdam) {
    log.warn(concat("--lr ", config.lr, " is high for --optimizer adamw, whose steps do not shrink with the ",
                    "gradient; 0.001 is usual"));
  }
  if (config.update == comm::UpdateKind::local) log.info(local_text(plan));
  if (const std::string note = update.note(); !note.empty()) log.warn(note);
  if (plan.sizes.partial_aggregation() && !config.aggregation.asynchronous &&
      config.shuffle == data::Shuffle::shard) {
    log.info(
        "note: with --aggregate below all workers one that is always late never makes a step, and with "
        "--shuffle shard nobody else has its samples; --shuffle global hands out all samples anew in each "
        "pass");
  }
  if (const int unused = plan.world.unused_cores(); unused > 0) {
    log.info(concat("note: ", unused,
                    " cores of this node are in no rank's affinity mask; mpirun --bind-to none frees them"));
  }
  const std::string from =
      start.initialized_from.empty()
          ? std::string()
          : concat("; initialized from the averaged weights of ", start.initialized_from);
  if (!start.resumed) {
    if (plan.sizes.aggregated > 1 && config.global_batch == 0 && config.lr_scaling == optim::LrScaling::none)
      log.info(global_batch_text(plan));
    log.info(concat("starting: ", length_text(plan), "; run directory ", config.run_dir, from));
    return;
  }
  log.info(concat("resuming at step ", plan.progress.step, " of ", plan.sizes.total_steps, from,
                  config.init_from.empty() ? "" : "; --init-from is not read again"));
  if (!start.changed.empty())
    log.info(
        concat("changed from step ", plan.progress.step + 1, " on: ", start.changed, " (--allow-change)"));
  for (const std::string& note : run::resume_notes(start, started_run(plan, *device.tower))) log.info(note);
}

/// Rank 0 says it, and it computes.
void describe_kernels(const Plan& plan, const Device& device, const std::vector<std::string>& slower) {
  if (plan.serves()) return;
  const std::string lines = device.tower->plan_text();
  if (!plan.config.show_kernels) {
    plan.log.info(concat("kernels: ", std::count(lines.begin(), lines.end(), '\n'),
                         " choices; --show-kernels lists them"));
  } else {
    plan.log.info("kernels:");
    std::istringstream in(lines);
    for (std::string line; std::getline(in, line);) plan.log.info(concat("  ", line));
  }
  for (const std::string& line : slower) plan.log.warn(concat("slower kernel: ", line));
}

}  // namespace

std::unique_ptr<SessionState> set_up(TrainConfig config, const Directory& run, const comm::World& world,
                                     const Log& log, const comm::PlatformFactory& make_platform,
                                     std::atomic<int>& requests, const SelfCheck* check) {
  auto owner = std::make_unique<SessionState>(std::move(config), world, log, requests);
  SessionState& state = *owner;
  Plan& plan = state.plan;
  Device& device = state.device;
  Blocks& blocks = state.blocks;
  std::optional<data::DatasetFile> dataset;  // open during set-up only
  plan.run = &run;
  world.together([&] { open_dataset(plan, dataset); });
  require_equal_data(world, *dataset, plan.config.data);
  run::StartRequest asked = start_request(plan);
  const run::Start start = run::find_start(asked, initial_tensors(plan.network.params, plan.config.seed),
                                           plan.network.params, world, log);
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
  resolve_threads(plan);
  part_workers(plan);
  const comm::PlatformFactory platform = proven_platform(plan, make_platform, check);
  world.together([&] { plan_on_this_device(plan, device, platform); });
  const std::vector<std::string> slower = agree_on_kernels(plan, device);
  world.together([&] { load_samples(plan, device, *dataset); });
  share_kernels(plan, device);
  find_dataset_moments(plan.network.augment, *dataset, world);
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
  share_state(plan, device, blocks.state);
  plan.progress.resolved = resolved_settings(plan, *blocks.update);
  describe_run(plan, device, *blocks.update, start);
  describe_kernels(plan, device, slower);
  describe_cores(plan, *device.backend);
  return owner;
}

Session::Session(TrainConfig config, const Directory& run, const comm::World& world, const Log& log,
                 const comm::PlatformFactory& make_platform, std::atomic<int>& requests,
                 const SelfCheck* check)
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
