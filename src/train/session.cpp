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
#include "cifar_mpi/config/options.hpp"
#include "cifar_mpi/optim/optimizer.hpp"
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
  write_atomically(*plan.run / "config.toml", std::as_bytes(std::span(plan.config.text)));
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
  device.backend->copy(blocks.batch_counter.data(), reinterpret_cast<const std::byte*>(&mine), sizeof mine);
}

/// ", whitening/biases frozen"
std::string frozen_text(const step::Plan& plan, const step::StepKind& kind) {
  std::string names;
  for (const model::Param& param : plan.network.params) {
    if (param.trains() && !param.trains(kind.frozen_at)) names += concat(", ", param.name);
  }
  return names.empty() ? names : names + " frozen";
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

run::StartedRun started_run(const step::Plan& plan, const step::Device& device) {
  return {plan.progress.resolved,   device.plan_text(),
          plan.config.reproducible, plan.config.shuffle,
          plan.info.train_count,    plan.sizes.global_batch,
          plan.sizes.workers,       plan.sizes.partial_aggregation(),
          plan.config.views,        plan.config.patience > 0 || plan.config.keep_best};
}

/// Everything beyond plain gradient descent on the given labels.
std::string optimizer_text(const config::TrainConfig& config) {
  std::string text;
  if (config.optimizer.kind != optim::OptimizerKind::sgd)
    text += concat("; optimizer ", optim::describe(config.optimizer));
  if (config.clip_norm > 0.0) text += concat("; gradients clipped to norm ", config.clip_norm);
  if (config.label_smoothing > 0.0) text += concat("; labels smoothed by ", config.label_smoothing);
  return text;
}

/// "128 per rank", "4 x 128 per rank".
std::string batch_text(const step::Plan& plan) {
  const char* const each = plan.sizes.workers < plan.world.size() ? " per worker" : " per rank";
  if (plan.config.accumulate == 1) return concat(plan.sizes.batch, each);
  return concat(plan.config.accumulate, " x ", plan.sizes.batch / plan.config.accumulate, each);
}

/// "all-reduce window", "update by server, rank 3".
std::string update_text(const step::Plan& plan, const comm::Update& update) {
  if (plan.world.size() == 1) return "no exchange of gradients";
  const bool sums = plan.config.update != comm::UpdateKind::server;
  return concat(sums ? "all-reduce " : "update by ", update.name());
}

std::string local_text(const step::Plan& plan) {
  const optim::LocalSteps& local = plan.config.local;
  std::string from;
  if (plan.sizes.local_from > 0)
    from = concat(" from step ", plan.sizes.local_from + 1,
                  " on, before it gradients are exchanged in every step");
  return concat("update: local, ", local.steps, local.steps == 1 ? " step" : " steps",
                " of each rank between averagings, outer ", optim::describe(local), from,
                "; log, evaluation, checkpoints and stops wait for an averaging");
}

/// "operations: 0.2245 PFLOP in all, 0.1875 without taps outside the images"
std::string operations_text(const step::Plan& plan) {
  const model::Flops all = step::training_flops(plan);
  return fmt::format("operations: {:.4g} PFLOP in all, {:.4g} without taps outside the images",
                     1e-15 * all.nominal, 1e-15 * all.in_image);
}

/// "image size: 24x24 in steps 1 to 7 (369 MFLOP per image), 24x24 in steps 8 to 98 (341 MFLOP per image,
/// whitening/biases frozen), 28x28 …"
std::string image_size_text(const step::Plan& plan) {
  std::string text = "image size: ";
  for (std::uint64_t from = 0, end = 0; from < plan.sizes.total_steps; from = end) {
    end = step::program_end(plan, from);
    const step::StepKind kind = step::step_kind(plan, from);
    const Extent& input = step::network_for(plan, kind).input;
    text += concat(from == 0 ? "" : ", ", input.height, 'x', input.width, " in steps ", from + 1, " to ", end,
                   fmt::format(" ({:.0f} MFLOP per image", 1e-6 * step::training_flops(plan, kind).nominal),
                   frozen_text(plan, kind), ")");
  }
  text += "; evaluation sees whole images";
  if (plan.sizes.image_stages.size() == plan.config.image_sizes.size()) return text;
  return concat(text, "; the run ends before ",
                plan.config.image_sizes[plan.sizes.image_stages.size()].pixels, " pixels of --image-size ",
                config::describe(plan.config.image_sizes));
}

/// The effect of several ranks with the default batch, which is per rank.
std::string global_batch_text(const step::Plan& plan) {
  const config::Sizes& sizes = plan.sizes;
  const int one = sizes.batch;
  return concat("batch: ", sizes.aggregated, " ranks with ", one, " samples each make a global batch of ",
                sizes.global_batch, ", so an epoch has ", std::llround(sizes.steps_per_epoch),
                " steps; --global-batch ", one,
                " keeps the batch, the steps and the accuracy of one rank, --lr-scaling sqrt ",
                "--warmup-epochs 5 adapts the rate to the larger batch, which needs more epochs");
}

/// "3120 steps, 7.987 epochs": the length in epochs is that of the whole steps.
std::string length_text(const step::Plan& plan) {
  const auto steps = static_cast<double>(plan.sizes.total_steps);
  const double made = steps / plan.sizes.steps_per_epoch;
  std::string text = concat(plan.sizes.total_steps, plan.sizes.total_steps == 1 ? " step, " : " steps, ",
                            fmt::format("{:.4g}", made), made == 1.0 ? " epoch" : " epochs");
  if (plan.config.steps == 0 && made < plan.config.epochs)
    text += concat(" (whole steps of --epochs ", config::exact(plan.config.epochs), ')');
  if (plan.config.update == comm::UpdateKind::server && plan.config.aggregation.asynchronous)
    text += concat("; with --aggregate async a step is one push of ", plan.sizes.batch,
                   " images, so all workers together take ", plan.sizes.total_steps * plan.sizes.global_batch,
                   " images");
  return text;
}

/// Images larger than the network's input are cut, which costs accuracy where their object fills them.
std::string cut_text(const step::Plan& plan) {
  const Extent &image = plan.info.image, &input = plan.network.net.input;
  if (image.height <= input.height && image.width <= input.width) return {};
  return concat("; the network sees a part of ", input.height, 'x', input.width,
                " (--input-size): random in training, the centre in evaluation");
}

constexpr double kHighForAdam = 0.02;

/// Rank 0 logs it; rank 0 is a worker, and a server lacks some of these facts.
void describe_run(const step::Plan& plan, const step::Device& device, const comm::Update& update,
                  const run::Start& start) {
  if (plan.serves()) return;
  const config::TrainConfig& config = plan.config;
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
  log.info(concat("learning rate: ",
                  optim::Schedule(config::schedule_spec(config, plan.sizes, info.train_count)).describe(),
                  "; EMA ", config.ema_decay, "; weight decay ", config.weight_decay,
                  optimizer_text(config)));
  if (config.optimizer.kind == optim::OptimizerKind::adamw && config.lr > kHighForAdam) {
    log.warn(concat("--lr ", config.lr, " is high for --optimizer adamw, whose steps do not shrink with the ",
                    "gradient; 0.001 is usual"));
  }
  if (config.update == comm::UpdateKind::local) log.info(local_text(plan));
  if (!config.image_sizes.empty()) log.info(image_size_text(plan));
  log.info(operations_text(plan));
  if (const std::string note = update.note(); !note.empty()) log.warn(note);
  if (plan.sizes.partial_aggregation() && !config.aggregation.asynchronous &&
      config.shuffle == data::Shuffle::shard) {
    log.info(
        "note: with --aggregate below all workers, one that is always late never makes a step, and with "
        "--shuffle shard no other rank has its samples; --shuffle global distributes all samples again in "
        "each epoch");
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
  const bool done = plan.progress.step >= plan.sizes.total_steps;
  log.info(concat(
      "resuming at step ", plan.progress.step, " of ", plan.sizes.total_steps,
      done ? ", so no step is left to train" : "",
      done && !start.changed.empty() ? concat(" (changed, with no step to act on: ", start.changed, ")") : "",
      from, config.init_from.empty() ? "" : "; --init-from is not read again"));
  if (done) return;
  if (!start.changed.empty())
    log.info(
        concat("changed from step ", plan.progress.step + 1, " on: ", start.changed, " (--allow-change)"));
  for (const std::string& note : run::resume_notes(start, started_run(plan, device))) log.info(note);
}

/// Rank 0 logs it, and rank 0 computes.
void describe_kernels(const step::Plan& plan, const step::Device& device,
                      const std::vector<std::string>& slower) {
  if (plan.serves()) return;
  const std::string lines = device.plan_text();
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
  std::vector<run::NamedTensor> initial = evaluation::initial_tensors(plan.network.params, plan.config.seed);
  world.together([&] { evaluation::whiten(initial, plan.network, *dataset); });
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
