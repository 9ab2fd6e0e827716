#include "cifar_mpi/train/config.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/optim/optimizer.hpp"
#include "cifar_mpi/run/checkpoint.hpp"
#include "train/update_options.hpp"

namespace cifar_mpi::train {
namespace {

constexpr std::int64_t kLargestBatch = 1 << 20;
constexpr int kMostAccumulated = 1024;  // so that the samples of a rank and step fit an int
constexpr double kMany = 1e9;           // more than this is a slip of the keyboard

void require_positive(const char* option, std::int64_t value) {
  if (value < 1) refuse(concat(option, " must be at least 1, not ", value));
}

void require_above_zero(const char* option, double value) {
  if (!(value > 0.0 && value <= kMany)) {
    refuse(concat(option, " must be above 0 and at most ", kMany, ", not ", value));
  }
}

void require_in(const char* option, double value, double low, double high) {
  if (!(value >= low && value <= high)) {
    refuse(concat(option, " must lie between ", low, " and ", high, ", not ", value));
  }
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::string joined(const std::vector<double>& values) {
  std::vector<std::string> texts;
  for (const double value : values) texts.push_back(exact(value));
  return joined(texts);
}

/// What only some schedules have.
void add_schedule(RunFingerprint& items, const TrainConfig& config, const Sizes& sizes) {
  using optim::ScheduleKind;
  if (config.schedule == ScheduleKind::staircase) return;
  items.emplace_back(run::kLength, std::to_string(sizes.total_steps));
  if (config.schedule == ScheduleKind::steps) {
    items.emplace_back("--decay-at", joined(config.decay_at));
    return;
  }
  items.emplace_back("--final-lr-share", exact(config.final_lr_share));
  if (config.schedule == ScheduleKind::one_cycle)
    items.emplace_back("--initial-lr-share", exact(config.initial_lr_share));
}

/// What only some optimizers have.
void add_optimizer(RunFingerprint& items, const TrainConfig& config) {
  for (const auto& [name, value] : optim::numbers_of(config.optimizer))
    items.emplace_back(concat("--", name), exact(value));
}

int resolve_workers(const TrainConfig& config, int ranks) {
  if (config.update != comm::UpdateKind::server) return ranks;
  if (config.servers < ranks) return ranks - config.servers;
  refuse(concat("--servers ", config.servers, " of ", ranks, ranks == 1 ? " rank" : " ranks",
                " leaves none to compute; start at least ", config.servers + 1,
                " ranks, or give fewer servers"));
}

/// How many workers' gradients make a step.
int resolve_aggregated(const TrainConfig& config, int workers) {
  if (config.update != comm::UpdateKind::server) return workers;
  const int aggregated = config.aggregation.of(workers);
  if (aggregated <= workers) return aggregated;
  refuse(concat("--aggregate ", aggregated, " waits for more gradients than ", workers,
                workers == 1 ? " worker computes" : " workers compute", "; give at most ", workers,
                ", or all"));
}

/// Samples per rank and step, of which so many ranks' make a step.
std::int64_t resolve_batch(const TrainConfig& config, int ranks) {
  const std::int64_t accumulate = config.accumulate;
  if (config.global_batch == 0) return config.batch_size * accumulate;
  if (config.global_batch % ranks != 0) {
    const std::string of_recipe =
        config.model == TrainConfig{}.model
            ? std::string()
            : concat(" (unless you gave it, it is that of the recipe of ", config.model, ')');
    const bool serves = config.update == comm::UpdateKind::server;
    refuse(concat("--global-batch ", config.global_batch, " cannot be divided by ", ranks,
                  serves ? " workers" : " ranks", "; give another, or --batch-size, the samples of each ",
                  serves ? "worker" : "rank", of_recipe));
  }
  const std::int64_t batch = config.global_batch / ranks;
  if (batch % accumulate != 0) {
    refuse(concat("--global-batch ", config.global_batch, " gives each of ", ranks,
                  ranks == 1 ? " rank " : " ranks ", batch,
                  " samples, which cannot be divided into --accumulate ", accumulate, " batches"));
  }
  if (batch / accumulate > kLargestBatch) {
    refuse(concat("--global-batch ", config.global_batch, " is more than ", kLargestBatch,
                  " samples per rank and batch"));
  }
  return batch;
}

/// Micro-shards per rank. All the work of a micro-shard must be the same wherever it is done, so the division
/// must come out even.
int resolve_parts(const TrainConfig& config, int batch, int ranks) {
  const int shards = config.micro_shards;
  if ((ranks & (ranks - 1)) != 0 || shards % ranks != 0) {
    refuse(concat("--reproducible needs a number of ranks that is a power of two and divides --micro-shards ",
                  shards, ", not ", ranks));
  }
  const int parts = shards / ranks;
  if (batch % parts != 0) {
    refuse(
        concat("--reproducible cuts the global batch of ", static_cast<std::int64_t>(batch) * ranks, " into ",
               shards,
               " micro-shards, which does not come out even; choose another --batch-size or --micro-shards"));
  }
  return parts;
}

void check_augment(const TrainConfig& config) {
  using data::Augment;
  require_in("--input-size", config.input_size, 0, 4096);
  require_in("--crop-pad", config.crop_pad, 0, 1024);
  require_in("--cutout", config.cutout, 0, 4096);
  const TrainConfig standard;
  const auto needs_crop = [&](const char* option, bool changed) {
    if (changed && config.augment != Augment::crop)
      refuse(concat(option, " goes with --augment crop, not with ", to_string(config.augment)));
  };
  needs_crop("--crop-pad", config.crop_pad != standard.crop_pad);
  needs_crop("--crop-fill", config.crop_fill != standard.crop_fill);
  needs_crop("--cutout", config.cutout != standard.cutout);
  if (config.augment == Augment::none && config.flip != standard.flip)
    refuse("--flip goes with --augment tutorial or crop: none flips no image");
  if (config.augment == Augment::tutorial && config.normalize == data::Normalize::dataset) {
    refuse(
        "--normalize dataset goes with --augment crop or none: the tutorial's brightness only cancels where "
        "each "
        "image is standardized");
  }
}

void check_reproducible(const TrainConfig& config) {
  if (config.micro_shards < 1 || config.micro_shards > 4096 ||
      (config.micro_shards & (config.micro_shards - 1)) != 0) {
    refuse(concat("--micro-shards must be a power of two from 1 to 4096, not ", config.micro_shards));
  }
  if (!config.reproducible) return;
  if (config.accumulate > 1) {
    refuse(
        "--accumulate does not go with --reproducible, which computes the global batch in --micro-shards "
        "already");
  }
  if (config.shuffle != data::Shuffle::global) {
    refuse(
        "--reproducible needs --shuffle global: a rank's own shard holds other samples on another number of "
        "ranks");
  }
  const std::string_view in_tree = comm::fixed_tree_collective();
  if (config.all_reduce != "auto" && config.all_reduce != in_tree) {
    refuse(concat("--reproducible adds in a fixed tree, which only --all-reduce ", in_tree, " does, not ",
                  config.all_reduce));
  }
  if (config.wire != comm::Wire::fp32) {
    refuse("--reproducible needs --wire fp32: what is rounded on the way depends on the number of ranks");
  }
}

void add_augment(RunFingerprint& items, const TrainConfig& config, const data::DatasetInfo& dataset) {
  items.emplace_back("--augment", std::string(to_string(config.augment)));
  const data::AugmentSpec spec = augment_spec(config, dataset.image);
  items.emplace_back("network input", concat(spec.crop_height, 'x', spec.crop_width));
  items.emplace_back("--flip", std::string(to_string(config.flip)));
  items.emplace_back("--normalize", std::string(to_string(config.normalize)));
  if (config.augment != data::Augment::crop) return;
  items.emplace_back("--crop-pad", std::to_string(config.crop_pad));
  items.emplace_back("--crop-fill", std::string(to_string(config.crop_fill)));
  items.emplace_back("--cutout", std::to_string(config.cutout));
}

void check_trace(const TraceWindow& window) {
  if (window.first == 0) return;
  const std::string given = concat("--trace ", describe(window));
  if (window.last < window.first)
    refuse(concat(given, " ends before it begins; give the smaller step first"));
  if (window.last - window.first >= kMostTracedSteps) {
    refuse(concat(given, " is ", window.last - window.first + 1, " steps, of which at most ",
                  kMostTracedSteps, " can be traced; give fewer"));
  }
}

}  // namespace

std::string describe(const TraceWindow& window) {
  return window.first == 0 ? "none" : concat(window.first, '-', window.last);
}

void check(const TrainConfig& config) {
  // An option given as "--run-dir=" takes the next word for its value.
  if (config.run_dir.empty() || config.run_dir.front() == '-') {
    refuse(concat("--run-dir must name a folder, not \"", config.run_dir, "\"; write ./", config.run_dir,
                  " if it is meant"));
  }
  if (!config.init_from.empty() && config.resume != "auto" && config.resume != "never") {
    refuse(concat("--init-from ", config.init_from, " begins a new run, --resume ", config.resume,
                  " goes on with one; give one of them"));
  }
  if (config.batch_size < 1 || config.batch_size > kLargestBatch) {
    refuse(concat("--batch-size must lie between 1 and ", kLargestBatch, ", not ", config.batch_size));
  }
  require_in("--accumulate", config.accumulate, 1, kMostAccumulated);
  if (config.global_batch < 0)
    refuse(concat("--global-batch must not be negative, but is ", config.global_batch));
  if (config.steps < 0) refuse(concat("--steps must not be negative, but is ", config.steps));
  if (config.threads < 0 || config.threads > 4096) {
    refuse(concat("--threads must lie between 1 and 4096 (0: chosen), not ", config.threads));
  }
  require_above_zero("--epochs", config.epochs);
  Sizes any;  // what the schedule's own options may be does not depend on it
  any.global_batch = 1;
  optim::check(schedule_spec(config, any, 1));
  optim::check(config.optimizer);
  require_in("--clip-norm", config.clip_norm, 0.0, kMany);
  require_in("--weight-decay", config.weight_decay, 0.0, kMany);
  if (!(config.label_smoothing >= 0.0 && config.label_smoothing < 1.0)) {
    refuse(concat("--label-smoothing must lie in [0, 1), not ", config.label_smoothing));
  }
  if (!(config.ema_decay >= 0.0 && config.ema_decay < 1.0)) {
    refuse(concat("--ema-decay must lie in [0, 1), not ", config.ema_decay));
  }
  check_augment(config);
  check_reproducible(config);
  check_update_options(config);
  require_in("--bucket-mib", config.bucket_mib, kLeastBucketMib, kMostBucketMib);
  require_in("--graph-steps", config.graph_steps, 0, kMostGraphSteps);
  require_in("--eval-every", config.eval_every, 0.0, kMany);
  require_positive("--log-every", config.log_every);
  check_trace(config.trace);
  if (config.summary_every < 0) {
    refuse(concat("--summary-every must not be negative, but is ", config.summary_every,
                  "; 0 turns summaries off"));
  }
  require_positive("--checkpoint-every", config.checkpoint_every);
  require_positive("--keep", config.keep);
  if (config.keep_every < 0) refuse(concat("--keep-every must not be negative, but is ", config.keep_every));
  if (config.keep_best && config.eval_every == 0.0) {
    refuse(
        "--keep-best chooses among evaluations, and without --eval-every there is only the last; give "
        "--eval-every as well, the epochs between them");
  }
  require_positive("--check-every", config.check_every);
  require_in("--stop-after", config.stop_after_min, 0.0, kMany);
  if (config.timeout_s != 0.0 && !(config.timeout_s >= 2.0 && config.timeout_s <= kMany))
    refuse(concat("--timeout must be 0 or at least 2 seconds, not ", config.timeout_s));
}

Sizes resolve_sizes(const TrainConfig& config, int all_ranks, const data::DatasetInfo& dataset) {
  Sizes sizes;
  const int ranks = resolve_workers(config, all_ranks);
  sizes.workers = ranks;
  sizes.aggregated = resolve_aggregated(config, ranks);
  const std::int64_t batch = resolve_batch(config, sizes.aggregated);
  sizes.batch = static_cast<int>(batch);
  sizes.global_batch = static_cast<std::uint64_t>(sizes.batch) * static_cast<std::uint64_t>(sizes.aggregated);

  sizes.parts = config.accumulate;
  if (config.reproducible) sizes.parts = resolve_parts(config, sizes.batch, ranks);

  const std::uint64_t samples = dataset.train_count;
  const auto p = static_cast<std::uint64_t>(ranks);
  if (samples < p) {
    throw Error(ErrorKind::data, concat(config.data, " has ", samples, " training samples, fewer than the ",
                                        ranks, " ranks; start fewer ranks or use a larger dataset"));
  }
  if (samples / p < static_cast<std::uint64_t>(sizes.batch)) {
    throw Error(ErrorKind::data,
                concat(config.data, " has ", samples, " training samples, fewer than one global batch of ",
                       sizes.global_batch, " (", sizes.batch, " per rank); lower ",
                       config.global_batch > 0 ? "--global-batch"
                       : config.accumulate > 1 ? "--batch-size or --accumulate"
                                               : "--batch-size"));
  }
  sizes.steps_per_epoch = static_cast<double>(samples) / static_cast<double>(sizes.global_batch);
  // multiplied first: whole epochs that end with a whole step are then exact
  const double steps = config.epochs * static_cast<double>(samples) / static_cast<double>(sizes.global_batch);
  sizes.total_steps = static_cast<std::uint64_t>(steps);
  if (config.steps > 0) sizes.total_steps = static_cast<std::uint64_t>(config.steps);
  if (sizes.total_steps == 0) {
    refuse(concat("--epochs ", config.epochs, " is less than one step of ", sizes.global_batch, " of ",
                  samples, " samples"));
  }
  if (config.trace.first > 0 && sizes.aggregated < sizes.workers) {
    refuse(
        "--trace does not go with --aggregate, where workers are in different steps at a time; leave one of "
        "them out");
  }
  resolve_local_steps(config, static_cast<double>(samples), sizes);
  if (config.trace.last > sizes.total_steps) {
    refuse(concat("--trace ", describe(config.trace), " ends behind the last step of the run, ",
                  sizes.total_steps, "; give earlier steps"));
  }
  return sizes;
}

optim::ScheduleSpec schedule_spec(const TrainConfig& config, const Sizes& sizes,
                                  std::uint64_t train_samples) {
  optim::ScheduleSpec spec;
  spec.base_rate = config.lr;
  spec.decay_factor = config.lr_decay_factor;
  spec.epochs_per_decay = config.epochs_per_decay;
  spec.warmup_epochs = config.warmup_epochs;
  spec.scaling = config.lr_scaling;
  spec.samples = train_samples;
  spec.global_batch = sizes.global_batch;
  spec.kind = config.schedule;
  spec.decay_at = config.decay_at;
  spec.initial_share = config.initial_lr_share;
  spec.final_share = config.final_lr_share;
  spec.total_steps = sizes.total_steps;
  return spec;
}

data::AugmentSpec augment_spec(const TrainConfig& config, const Extent& image) {
  data::AugmentSpec spec;
  spec.kind = config.augment;
  spec.source = image;
  if (config.input_size > 0) {
    spec.crop_height = spec.crop_width = config.input_size;
  } else if (config.augment == data::Augment::crop) {
    spec.crop_height = image.height;
    spec.crop_width = image.width;
  }
  spec.pad = config.crop_pad;
  spec.fill = config.crop_fill;
  spec.flip = config.flip;
  spec.cutout = config.cutout;
  spec.normalize = config.normalize;
  return spec;
}

RunFingerprint run_fingerprint(const TrainConfig& config, const Sizes& sizes,
                               const data::DatasetInfo& dataset) {
  RunFingerprint items{
      {"model", config.model},
      {"dataset image", to_string(dataset.image)},
      {"dataset classes", std::to_string(dataset.classes())},
      {"dataset label names", joined(dataset.label_names)},
      {"dataset training samples", std::to_string(dataset.train_count)},
      {"--seed", std::to_string(config.seed)},
      {"--global-batch", std::to_string(sizes.global_batch)},
      {"--lr", exact(config.lr)},
      {"--optimizer", std::string(to_string(config.optimizer.kind))},
      {"--clip-norm", exact(config.clip_norm)},
      {"--schedule", std::string(to_string(config.schedule))},
      {"--lr-decay-factor", exact(config.lr_decay_factor)},
      {"--epochs-per-decay", exact(config.epochs_per_decay)},
      {"--lr-scaling", std::string(to_string(config.lr_scaling))},
      {"--warmup-epochs", exact(config.warmup_epochs)},
      {"--weight-decay", exact(config.weight_decay)},
      {"--label-smoothing", exact(config.label_smoothing)},
      {"--ema-decay", exact(config.ema_decay)},
  };
  add_augment(items, config, dataset);
  items.emplace_back("--shuffle", std::string(to_string(config.shuffle)));
  add_schedule(items, config, sizes);
  add_optimizer(items, config);
  add_update_options(items, config);
  if (config.reproducible) items.emplace_back("--micro-shards", std::to_string(config.micro_shards));
  return items;
}

RunFingerprint unrecorded_fingerprint() {
  return {{"--optimizer", "sgd"},      {"--clip-norm", "0"},
          {"--schedule", "staircase"}, {"--label-smoothing", "0"},
          {"network input", "24x24"},  {"--flip", "random"},
          {"--normalize", "image"},    {"--update", "all-reduce or server"}};
}

}  // namespace cifar_mpi::train
