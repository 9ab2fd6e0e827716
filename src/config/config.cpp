#include "cifar_mpi/config/config.hpp"

#include <cmath>
#include <map>
#include <utility>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/config/options.hpp"
#include "cifar_mpi/run/checkpoint.hpp"

namespace cifar_mpi::config {
namespace {

[[noreturn]] void refuse(const std::string& text) { throw Error(ErrorKind::usage, text); }

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// The number of workers whose gradients make a step.
int resolve_aggregated(const TrainConfig& config, int workers) {
  if (config.update != comm::UpdateKind::server) return workers;
  const int aggregated = config.aggregation.of(workers);
  if (aggregated <= workers) return aggregated;
  refuse(concat("--aggregate ", aggregated, " waits for more gradients than ", workers,
                workers == 1 ? " worker computes" : " workers compute", "; give at most ", workers,
                ", or all"));
}

/// Samples per rank and step; `aggregated` ranks make a step.
std::int64_t resolve_batch(const TrainConfig& config, int ranks) {
  const std::int64_t accumulate = config.accumulate;
  if (config.global_batch == 0) return config.batch_size * accumulate;
  if (config.global_batch % ranks != 0) {
    const bool serves = config.update == comm::UpdateKind::server;
    refuse(concat("--global-batch ", config.global_batch, " cannot be divided by ", ranks,
                  serves ? " workers" : " ranks", "; give another, or set --batch-size, the samples of each ",
                  serves ? "worker" : "rank"));
  }
  const std::int64_t batch = config.global_batch / ranks;
  if (batch % accumulate != 0) {
    refuse(concat("--global-batch ", config.global_batch, " gives each of ", counted(ranks, "rank"), " ",
                  batch, " samples, which cannot be divided into --accumulate ", accumulate, " batches"));
  }
  if (batch / accumulate > kLargestBatch) {
    refuse(concat("--global-batch ", config.global_batch, " is more than ", kLargestBatch,
                  " samples per rank and batch"));
  }
  return batch;
}

/// Micro-shards per rank. A micro-shard must be the same work on any rank, so the division must leave no
/// remainder.
int resolve_parts(const TrainConfig& config, int batch, int ranks) {
  const int shards = config.micro_shards;
  if ((ranks & (ranks - 1)) != 0 || shards % ranks != 0) {
    refuse(concat("--reproducible needs a number of ranks that is a power of two and divides --micro-shards ",
                  shards, ", not ", ranks));
  }
  const int parts = shards / ranks;
  if (batch % parts != 0) {
    refuse(concat("--reproducible cannot divide the global batch of ",
                  static_cast<std::int64_t>(batch) * ranks, " into ", shards,
                  " equal micro-shards; choose another --batch-size or --micro-shards"));
  }
  return parts;
}

void check_reproducible(const TrainConfig& config) {
  if (config.micro_shards < 1 || config.micro_shards > 4096 ||
      (config.micro_shards & (config.micro_shards - 1)) != 0) {
    refuse(concat("--micro-shards must be a power of two from 1 to 4096, not ", config.micro_shards));
  }
  if (!config.reproducible) return;
  if (config.accumulate > 1) {
    refuse(
        "--accumulate cannot be combined with --reproducible, which already computes the global batch in "
        "--micro-shards pieces; leave one of them out");
  }
  if (config.sync_batch_norm) {
    refuse(
        "--sync-batch-norm cannot be combined with --reproducible: it normalizes over the samples that all "
        "ranks compute at once, and how many these are depends on the number of ranks; leave one of them "
        "out");
  }
  if (config.shuffle != data::Shuffle::global) {
    refuse(
        "--reproducible needs --shuffle global: with another number of ranks a rank's shard holds other "
        "samples");
  }
  const std::string_view in_tree = comm::fixed_tree_collective();
  if (config.all_reduce != "auto" && config.all_reduce != in_tree) {
    refuse(
        concat("--reproducible needs the fixed tree of --all-reduce ", in_tree, ", not ", config.all_reduce));
  }
  if (config.wire != comm::Wire::fp32) {
    refuse("--reproducible needs --wire fp32: the rounding of other formats depends on the number of ranks");
  }
}

/// NVLS is an algorithm of its own, and its sums have no fixed order.
void check_nvls(const TrainConfig& config) {
  if (!config.nccl_nvls) return;
  if (config.nccl_algorithm != "auto") {
    refuse(concat("--nccl-nvls cannot be combined with --nccl-algo ", config.nccl_algorithm,
                  ", which is another algorithm; leave one of them out"));
  }
  if (config.reproducible) {
    refuse(
        "--nccl-nvls cannot be combined with --reproducible: sums in NVLink switches have no fixed order; "
        "leave one of them out");
  }
}

void check_averages(const TrainConfig& config) {
  const TrainConfig standard;
  const auto needs_lookahead = [&](const char* option, double value, double usual) {
    if (config.lookahead == 0 && value != usual)
      refuse(concat(option, " ", exact(value), " has no effect without --lookahead; leave it out"));
  };
  needs_lookahead("--lookahead-keep", config.lookahead_keep, standard.lookahead_keep);
  needs_lookahead("--lookahead-power", config.lookahead_power, standard.lookahead_power);
  needs_lookahead("--lookahead-steps", static_cast<double>(config.lookahead_steps), 0.0);
  if (config.tail_epochs > 0.0 && config.final_lr_share == 0.0) {
    refuse(concat("--tail-epochs ", exact(config.tail_epochs),
                  " would train at the rate 0; give the share of the rate that is left, --final-lr-share"));
  }
}

void check_matrices(const TrainConfig& config) {
  if (config.share_matrices == comm::Share::on && config.update == comm::UpdateKind::local)
    refuse(
        "--share-matrices on has no effect with --update local, where each rank computes its own updates; "
        "leave one of them out");
}

void check_trace(const TraceWindow& window) {
  if (window.first == 0) return;
  const std::string given = concat("--trace ", describe(window));
  if (window.last < window.first)
    refuse(concat(given, " ends before it begins; give the smaller step first"));
  if (window.last - window.first >= kMostTracedSteps) {
    refuse(concat(given, " covers ", window.last - window.first + 1, " steps; at most ", kMostTracedSteps,
                  " can be traced; give fewer"));
  }
}

/// Sets the start of local steps, and lets the run end with an averaging.
void resolve_local_steps(const TrainConfig& config, double samples, Sizes& sizes) {
  if (config.update != comm::UpdateKind::local) return;
  sizes.local_steps = config.local.steps;
  const double exchanged = config.local.after_epoch * samples / static_cast<double>(sizes.global_batch);
  sizes.local_from = static_cast<std::uint64_t>(std::ceil(exchanged));
  const auto round = static_cast<std::uint64_t>(sizes.local_steps);
  if (sizes.local_from + round > sizes.total_steps) {
    refuse(concat("--local-steps ", round, " from step ", sizes.local_from + 1, " on (--local-after ",
                  config.local.after_epoch, ") end after the last step of the run, ", sizes.total_steps,
                  "; give fewer, an earlier epoch or a longer run"));
  }
  const std::uint64_t left = (sizes.total_steps - sizes.local_from) % round;
  if (config.steps > 0 && left > 0) {
    refuse(concat("--steps ", config.steps, " does not end with an averaging of --local-steps ", round,
                  "; give ", sizes.total_steps - left, " or ", sizes.total_steps - left + round));
  }
  sizes.total_steps -= left;
}

/// A stage begins with the first step that begins in its epochs.
void resolve_image_sizes(const TrainConfig& config, const data::DatasetInfo& dataset, Sizes& sizes) {
  const data::AugmentSpec input = augment_spec(config, dataset.image);
  const std::string given = concat("--image-size ", describe(config.image_sizes));
  double epochs = 0.0;
  for (const ImageSize& size : config.image_sizes) {
    if (input.crop_height != input.crop_width || size.pixels > input.crop_height) {
      refuse(
          concat(given, " does not fit the network's input of ", input.crop_height, 'x', input.crop_width,
                 ", which must be square and at least as large; give smaller sizes, or --image-size full"));
    }
    const double steps =
        epochs * static_cast<double>(dataset.train_count) / static_cast<double>(sizes.global_batch);
    const auto from = static_cast<std::uint64_t>(std::ceil(steps));
    if (!sizes.image_stages.empty() && sizes.image_stages.back().from >= from) {
      refuse(concat(given, " has no step with images of ", sizes.image_stages.back().pixels,
                    " pixels, because no step begins in these epochs; give more epochs"));
    }
    epochs += size.epochs;
    if (from < sizes.total_steps) sizes.image_stages.push_back({from, size.pixels});
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
                  " to name that folder"));
  }
  if (config.run_dir.starts_with("~/"))
    refuse(concat("--run-dir ", config.run_dir, ": only a shell expands ~; write the whole path"));
  if (!config.init_from.empty() && config.resume != "auto" && config.resume != "never") {
    refuse(concat("--init-from ", config.init_from, " begins a new run, --resume ", config.resume,
                  " continues one; give only one of them"));
  }
  check_options(config);
  Sizes any;  // the limits of the schedule's own options do not depend on it
  any.global_batch = 1;
  optim::check(schedule_spec(config, any, 1));
  check_reproducible(config);
  if (config.optimizer.kind == optim::OptimizerKind::muon && config.update == comm::UpdateKind::server) {
    refuse(
        "--optimizer muon cannot be combined with --update server: muon needs whole matrices, but a server "
        "may hold only a part of one; give --update all-reduce or another --optimizer");
  }
  if ((config.brightness > 0.0 || config.contrast > 0.0) && config.normalize == data::Normalize::image) {
    refuse(concat(config.brightness > 0.0 ? "--brightness " : "--contrast ",
                  exact(config.brightness > 0.0 ? config.brightness : config.contrast),
                  " needs --normalize dataset: it has no effect where each image is standardized"));
  }
  if (config.views > 1 && (config.augment == data::Augment::none || config.flip == data::Flip::off)) {
    refuse(concat("--views ", config.views, " shows mirrored images, but ",
                  config.flip == data::Flip::off ? "--flip off" : "--augment none",
                  " trains on none; give --views 1"));
  }
  check_averages(config);
  check_matrices(config);
  check_nvls(config);
  check_trace(config.trace);
  const std::string needs =
      " needs several evaluations, but without --eval-every there is only one; set --eval-every, the epochs "
      "between evaluations";
  if (config.eval_every == 0.0 && config.patience > 0) refuse("--patience" + needs);
  if (config.eval_every == 0.0 && config.keep_best) refuse("--keep-best" + needs);
}

int count_workers(const TrainConfig& config, int ranks) {
  if (config.update != comm::UpdateKind::server) return ranks;
  if (config.servers < ranks) return ranks - config.servers;
  refuse(concat("--servers ", config.servers, " of ", counted(ranks, "rank"),
                " leaves no rank to compute; start at least ", config.servers + 1,
                " ranks, or give fewer servers"));
}

Sizes resolve_sizes(const TrainConfig& config, int all_ranks, const data::DatasetInfo& dataset) {
  Sizes sizes;
  const int ranks = count_workers(config, all_ranks);
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
    throw Error(ErrorKind::data, config.data, " has ", samples, " training samples, fewer than the ", ranks,
                " ranks; start fewer ranks or use a larger dataset");
  }
  if (samples / p < static_cast<std::uint64_t>(sizes.batch)) {
    throw Error(ErrorKind::data, config.data, " has ", samples,
                " training samples, fewer than one global batch of ", sizes.global_batch, " (", sizes.batch,
                " per rank); lower ",
                config.global_batch > 0 ? "--global-batch"
                : config.accumulate > 1 ? "--batch-size or --accumulate"
                                        : "--batch-size");
  }
  sizes.steps_per_epoch = static_cast<double>(samples) / static_cast<double>(sizes.global_batch);
  // Multiplies first, so that the result is exact for epochs that end with a whole step.
  const double steps = config.epochs * static_cast<double>(samples) / static_cast<double>(sizes.global_batch);
  sizes.total_steps = static_cast<std::uint64_t>(steps);
  if (config.steps > 0) sizes.total_steps = static_cast<std::uint64_t>(config.steps);
  if (sizes.total_steps == 0) {
    refuse(concat("--epochs ", config.epochs, " is shorter than one step, ", sizes.global_batch, " of ",
                  samples, " samples"));
  }
  if (config.trace.first > 0 && sizes.aggregated < sizes.workers) {
    refuse(
        "--trace cannot be combined with --aggregate, which lets workers be in different steps at the same "
        "time; leave one of them out");
  }
  resolve_local_steps(config, static_cast<double>(samples), sizes);
  resolve_image_sizes(config, dataset, sizes);
  if (config.trace.last > sizes.total_steps) {
    refuse(concat("--trace ", describe(config.trace), " ends after the last step of the run, ",
                  sizes.total_steps, "; give earlier steps"));
  }
  return sizes;
}

std::string length_dependence(const TrainConfig& config) {
  if (optim::depends_on_length(config.schedule)) return concat("--schedule ", to_string(config.schedule));
  return config.lookahead > 0 ? concat("--lookahead ", config.lookahead) : "";
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
  spec.tail_epochs = config.tail_epochs;
  return spec;
}

optim::AverageRule average_rule(const TrainConfig& config, const Sizes& sizes, std::uint64_t train_samples) {
  optim::AverageRule average{config.ema_decay};
  if (config.tail_epochs > 0.0)
    average.mean_from = optim::Schedule(schedule_spec(config, sizes, train_samples)).tail_from();
  return average;
}

optim::Lookahead lookahead_rule(const TrainConfig& config, const Sizes& sizes, std::uint64_t train_samples) {
  optim::Lookahead rule;
  rule.every = static_cast<std::uint64_t>(config.lookahead);
  rule.until = optim::Schedule(schedule_spec(config, sizes, train_samples)).tail_from();
  rule.keep = config.lookahead_keep;
  rule.power = config.lookahead_power;
  const auto steps = static_cast<std::uint64_t>(config.lookahead_steps);
  if (steps > rule.until) {
    refuse(concat("--lookahead-steps ", steps, " is more than the ", rule.until, " steps of the run",
                  config.tail_epochs > 0.0 ? " before its tail" : "", "; give fewer, or all"));
  }
  if (steps > 0) rule.from = rule.until - steps;
  return rule;
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
  spec.brightness = static_cast<float>(config.brightness);
  spec.contrast = static_cast<float>(config.contrast);
  spec.normalize = config.normalize;
  return spec;
}

RunFingerprint run_fingerprint(const TrainConfig& config, const Sizes& sizes,
                               const data::DatasetInfo& dataset) {
  const data::AugmentSpec input = augment_spec(config, dataset.image);
  std::multimap<int, std::pair<std::string, std::string>> by_place{
      {1, {"model", config.model}},
      {2, {"dataset image", to_string(dataset.image)}},
      {3, {"dataset classes", std::to_string(dataset.classes())}},
      {4, {"dataset label names", joined(dataset.label_names)}},
      {5, {"dataset training samples", std::to_string(dataset.train_count)}},
      {20, {"--global-batch", std::to_string(sizes.global_batch)}},
      {150, {"network input", concat(input.crop_height, 'x', input.crop_width)}}};
  if (!length_dependence(config).empty())
    by_place.insert({220, {run::kLength, std::to_string(sizes.total_steps)}});
  if (config.update == comm::UpdateKind::local)  // a resumed run may change between the other ways
    by_place.insert({300, {"--update", std::string(to_string(config.update))}});
  for (const Option& option : options()) {
    const Identity& identity = option.identity;
    if (identity.place == 0 || !(identity.always || is_used(option, config))) continue;
    if (identity.always || identity.unrecorded == nullptr || option.value.text(config) != identity.unrecorded)
      by_place.insert({identity.place, {std::string(option.name), option.value.text(config)}});
  }
  RunFingerprint items;
  for (auto& [place, item] : by_place) items.push_back(std::move(item));
  return items;
}

RunFingerprint unrecorded_fingerprint() {
  RunFingerprint items{{"network input", "24x24"}, {"--update", "all-reduce or server"}};
  for (const Option& option : options()) {
    if (option.identity.unrecorded != nullptr) items.emplace_back(option.name, option.identity.unrecorded);
  }
  return items;
}

}  // namespace cifar_mpi::config
