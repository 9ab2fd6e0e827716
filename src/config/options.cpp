#include "cifar_mpi/config/options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/model/net_spec.hpp"
#include "cifar_mpi/run/checkpoint.hpp"
#include "config/option_values.hpp"

namespace cifar_mpi::config {
namespace {

using C = TrainConfig;

/// An option of the tables below.
struct Row : Option {
  Row(std::string_view its_name, std::string_view its_help, OptionValue its_value) {
    name = its_name, help = its_help, value = std::move(its_value);
  }
  Row& daily() { return everyday = true, *this; }
  /// Where 0 is not in the range of the number, only the word gives it.
  Row& word(std::string_view for_zero) { return zero = for_zero, *this; }
  Row& goes_with(Needs others) { return needs = std::move(others), *this; }
  Row& identifies(int place, bool always = false, const char* unrecorded = nullptr) {
    return identity = {place, always, unrecorded}, *this;
  }
  Row& changeable() { return identity.may_change = true, *this; }
};
using Rows = std::vector<Row>;

constexpr double kMostAccumulated = 1024;  // so that a rank's samples per step fit an int
constexpr double kLeastEps = 1e-30;        // must not round to zero in fp32, or padding becomes 0/0

// Exchanges that sum over all ranks, and the options that need them.
const Needs kSums{"--update", {"all-reduce", "local"}};
const Needs kServer{"--update", {"server"}};
const Needs kLocal{"--update", {"local"}};
const Needs kAsync{"--aggregate", {"async"}};
const Needs kNesterov{"--outer", {"nesterov"}};
const Needs kCrop{"--augment", {"crop"}};
const Needs kMomentum{"--optimizer", {"momentum", "nesterov", "muon"}};
const Needs kAdamW{"--optimizer", {"adamw"}};
const Needs kMuon{"--optimizer", {"muon"}};
const Needs kSlope{"--schedule", {"linear", "cosine", "one-cycle"}};

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const model::ModelInfo& info : model::catalog()) names.emplace_back(info.name);
  return names;
}

// A row takes a line or two.
// clang-format off
Rows run_rows() {
  return {
      Row("--data", "Dataset file [$CIFAR_MPI_DATA, data/cifar10.h5]", words(&C::data, true)).daily(),
      Row("--run-dir", "Folder for everything that the run writes", words(&C::run_dir, true)).daily(),
      Row("--resume", "Checkpoint to resume from; auto: newest; never: a new run",
          words(&C::resume, false)).daily(),
      Row("--init-from", "Checkpoint whose averaged weights a new run starts with",
          path_or_none(&C::init_from)),
      Row("--allow-change", "Options that may differ from the resumed run's: lr,steps",
          option_names(&C::allow_change)),
      Row("--timeout", "Seconds without progress after which the job ends",
          number(in(&C::timeout_s), between(2.0, kMany))).word("never"),
      Row("--stop-after", "Minutes of training before a clean stop (code 75)",
          number(in(&C::stop_after_min), above_zero())).word("never"),
      Row("--seed", "Seed of initial values, sample order and distortions",
          number(in(&C::seed))).identifies(10),
  };
}

Rows model_rows() {
  return {
      Row("--model", "Network; its recipe (jobs/recipes) sets the defaults",
          name_among(&C::model, model_names())).daily(),
      Row("--device", "Device; auto: a GPU if usable, else the CPU",
          name_among(&C::device, {"auto", "cpu", "cuda"})).daily(),
      Row("--self-check", "Check a GPU against the CPU first; only: check and exit",
          choice(in(&C::self_check))),
      Row("--precision", "Arithmetic of the network; weights and sums stay fp32",
          choice(in(&C::precision))).daily(),
      Row("--conv", "Convolutions on the CPU; auto: by a fixed rule per layer", choice(in(&C::conv))),
      Row("--isa", "Widest CPU instructions to use", name_among(&C::isa, {"auto", "avx2", "portable"})),
      Row("--threads", "CPU threads per rank; auto: a fair share of the cores",
          number(in(&C::threads), between(1, 4096))).daily().word("auto"),
      Row("--runner", "Replay of steps; serial and audit are for debugging", choice(in(&C::runner))),
      Row("--graph-steps", "Steps per launch of a CUDA graph; auto: 5",
          number(in(&C::graph_steps), between(1, kMostGraphSteps))).word("auto"),
  };
}

Rows sample_rows() {
  return {
      Row("--batch-size", "Samples that a rank computes at once",
          number(in(&C::batch_size), between(1, kLargestBatch))).daily(),
      Row("--accumulate", "Batches per rank and step, added before the exchange",
          number(in(&C::accumulate), between(1, kMostAccumulated))),
      Row("--global-batch", "Samples per step over all ranks; auto: from --batch-size",
          number(in(&C::global_batch), at_least(1))).daily().word("auto"),
      Row("--epochs", "Length of the run in passes over the training set",
          number(in(&C::epochs), above_zero())).daily(),
      Row("--steps", "Length of the run in steps; auto: from --epochs",
          number(in(&C::steps), at_least(1))).daily().word("auto"),
      Row("--augment", "Training images: tutorial distortions, or shift and flip",
          choice(in(&C::augment))).identifies(140),
      Row("--input-size", "Side of the network's input in pixels; auto: by --augment",
          number(in(&C::input_size), between(1, 4096))).word("auto"),
      Row("--image-size", "Sides of training images and their epochs: 24x3,28x3,32",
          image_sizes(&C::image_sizes))
              .goes_with({"--update", {"all-reduce"}, "--image-size full works with every way to update"})
              .identifies(410, false, "full").changeable(),
      Row("--crop-pad", "Largest shift by --augment crop, in pixels",
          number(in(&C::crop_pad), between(0, 1024))).goes_with(kCrop).identifies(180).changeable(),
      Row("--crop-fill", "Pixels beyond the edge with --augment crop",
          choice(in(&C::crop_fill))).goes_with(kCrop).identifies(190).changeable(),
      Row("--flip", "Left-right flips; alternate: every other epoch",
          choice(in(&C::flip))).goes_with({"--augment", {"tutorial", "crop"}, "none flips no image"})
              .identifies(160, true, "random").changeable(),
      Row("--cutout", "Side of a square of zeros put into each image",
          number(in(&C::cutout), between(0, 4096))).word("off").goes_with(kCrop).identifies(200).changeable(),
      Row("--brightness", "Random brightness with --augment crop, in deviations",
          number(in(&C::brightness), between(0.0, 1.0))).word("off").goes_with(kCrop)
              .identifies(415, false, "0").changeable(),
      Row("--contrast", "Random contrast with --augment crop: 1 - X to 1 + X",
          number(in(&C::contrast), below_one())).word("off").goes_with(kCrop)
              .identifies(420, false, "0").changeable(),
      Row("--normalize", "Standardize by the statistics of each image or the dataset",
          choice(in(&C::normalize)))
              .goes_with({"--augment", {"crop", "none"},
                          "changes of brightness cancel only if each image is standardized by itself"})
              .identifies(170, true, "image"),
      Row("--shuffle", "Shuffle within each rank's shard, or over the whole set",
          choice(in(&C::shuffle))).identifies(210),
  };
}

Rows exchange_rows() {
  return {
      Row("--update", "Update by gradient sums, servers or local steps", choice(in(&C::update))),
      Row("--servers", "Number of servers, the last ranks, which hold the weights",
          number(in(&C::servers), at_least(1))).goes_with(kServer),
      Row("--aggregate", "Pushes per step: the first N, all, or async (each one)",
          aggregate()).goes_with(kServer),
      Row("--max-staleness", "Batches that a worker may be ahead of another",
          number_or_none(&comm::Aggregation::most_drift)).goes_with(kAsync),
      Row("--staleness-lr", "Divide the rate of a push by its staleness",
          on_off(in(&C::aggregation, &comm::Aggregation::scales_rate))).goes_with(kAsync),
      Row("--arrival-order", "Seed of a fixed order of pushes, for repeatable bits",
          number_or_none(&comm::Aggregation::arrival_order)).goes_with(kAsync),
      Row("--local-steps", "Steps of a rank between two averagings",
          number(in(&C::local, &optim::LocalSteps::steps), between(1, optim::kMostLocalSteps)))
              .goes_with(kLocal).identifies(310),
      Row("--outer", "Update of the weights at an averaging",
          choice(in(&C::local, &optim::LocalSteps::outer))).goes_with(kLocal).identifies(320),
      Row("--outer-lr", "Rate of --outer nesterov",
          number(in(&C::local, &optim::LocalSteps::outer_rate), above_zero())).goes_with(kNesterov)
              .identifies(340).changeable(),
      Row("--outer-momentum", "Momentum of --outer nesterov",
          number(in(&C::local, &optim::LocalSteps::outer_momentum), below_one())).goes_with(kNesterov)
              .identifies(350).changeable(),
      Row("--local-after", "Epochs of --update all-reduce before local steps begin",
          number(in(&C::local, &optim::LocalSteps::after_epoch), between(0.0, kMany))).goes_with(kLocal)
              .identifies(330),
      Row("--all-reduce", "Algorithm that sums gradients over ranks",
          words(&C::all_reduce, false)).goes_with(kSums),
      Row("--bucket-mib", "Smallest span of gradients to sum at once, in MiB",
          number(in(&C::bucket_mib), between(kLeastBucketMib, kMostBucketMib))).goes_with(kSums),
      Row("--nccl-algo", "Algorithm of NCCL", name_among(&C::nccl_algorithm, {"auto", "ring", "tree"})),
      Row("--nccl-nvls", "Let NCCL use NVLS; runs may then differ bit for bit", flag(&C::nccl_nvls)),
      Row("--share-gpus", "Let several ranks use one GPU: slow, for tests", flag(&C::share_gpus)),
      Row("--reproducible", "Same bits on 1, 2, 4, ... ranks; needs --shuffle global",
          flag(&C::reproducible)).daily()
              .goes_with({"--update", {"all-reduce"},
                          "with the other ways the result depends on the number of ranks"}),
      Row("--micro-shards", "Pieces of the global batch with --reproducible",
          number(in(&C::micro_shards))).goes_with({"--reproducible", {"true"}}).identifies(360),
      Row("--sync-batch-norm", "BatchNorm over the samples of all ranks, not of each alone",
          flag(&C::sync_batch_norm))
              .goes_with({"--update", {"all-reduce"}, "with the other ways ranks are in different steps"})
              .identifies(480, false, "false"),
      Row("--wire", "Gradient format on the network", choice(in(&C::wire))).goes_with(kSums),
      Row("--side-lane", "Run independent branches of backward concurrently", on_off(in(&C::side_lane))),
      Row("--overlap", "Sum gradients during backward; auto: by the ranks' placement",
          choice(in(&C::overlap))),
  };
}

Rows optimizer_rows() {
  using optim::OptimizerSpec;
  return {
      Row("--optimizer", "Update rule",
          choice(in(&C::optimizer, &OptimizerSpec::kind))).daily().identifies(40, true, "sgd"),
      Row("--momentum", "Momentum of --optimizer momentum, nesterov, muon",
          number(in(&C::optimizer, &OptimizerSpec::momentum), below_one())).goes_with(kMomentum)
              .identifies(260).changeable(),
      Row("--beta1", "Decay of the average of gradients (adamw)",
          number(in(&C::optimizer, &OptimizerSpec::beta1), below_one())).goes_with(kAdamW).identifies(270).changeable(),
      Row("--beta2", "Decay of the average of squared gradients (adamw)",
          number(in(&C::optimizer, &OptimizerSpec::beta2), below_one())).goes_with(kAdamW).identifies(280).changeable(),
      Row("--eps", "Term added to the root of the squares' average (adamw)",
          number(in(&C::optimizer, &OptimizerSpec::eps), between(kLeastEps, 1.0))).goes_with(kAdamW)
              .identifies(290).changeable(),
      Row("--muon-momentum", "Momentum of the hidden matrices (muon)",
          number(in(&C::optimizer, &OptimizerSpec::muon_momentum), below_one())).goes_with(kMuon)
              .identifies(370).changeable(),
      Row("--bias-lr", "Rate of biases and scales (muon)",
          number(in(&C::optimizer, &OptimizerSpec::bias_rate), above_zero())).word("lr")
              .goes_with(kMuon).identifies(380).changeable(),
      Row("--ends-lr", "Rate of the first and the last layer (muon)",
          number(in(&C::optimizer, &OptimizerSpec::ends_rate), above_zero())).word("lr")
              .goes_with(kMuon).identifies(390).changeable(),
      Row("--muon-normalize", "Steps between scalings of the hidden matrices (muon)",
          number(in(&C::optimizer, &OptimizerSpec::normalize_every), at_least(1))).word("never")
              .goes_with(kMuon).identifies(400).changeable(),
      Row("--share-matrices", "Compute each hidden matrix on one rank (muon)",
          choice(in(&C::share_matrices))).goes_with(kMuon),
      Row("--clip-norm", "Largest norm of the summed gradient",
          number(in(&C::clip_norm), between(0.0, kMany))).word("off")
              .goes_with({"--update", {"all-reduce", "local"},
                          "clipping needs the norm of the whole gradient, but each server has only a part"})
              .identifies(50, true, "0").changeable(),
      Row("--weight-decay", "L2 factor of the layers with weight decay",
          number(in(&C::weight_decay), between(0.0, kMany))).identifies(110).changeable(),
      Row("--label-smoothing", "Share of each training target spread over all classes",
          number(in(&C::label_smoothing), below_one())).identifies(120, true, "0").changeable(),
      Row("--ema-decay", "Decay of the moving average of the weights",
          number(in(&C::ema_decay), below_one())).identifies(130).changeable(),
      Row("--lookahead", "Steps between pulls of the weights to slow ones",
          number(in(&C::lookahead), between(0, 1e6))).word("off").goes_with({"--update", {"all-reduce"}})
              .identifies(430, false, "0"),
      Row("--lookahead-keep", "Share of the slow weights kept by the last pull",
          number(in(&C::lookahead_keep), below_one())).identifies(440, false, "0.7738").changeable(),
      Row("--lookahead-power", "Power of the elapsed share of the run in the pull",
          number(in(&C::lookahead_power), between(0.0, 100.0))).identifies(450, false, "3").changeable(),
      Row("--lookahead-steps", "Last steps before the tail that have lookahead",
          number(in(&C::lookahead_steps), at_least(1))).word("all").identifies(460, false, "0"),
      Row("--tail-epochs", "Last epochs, at a constant rate, to average the weights of",
          number(in(&C::tail_epochs), between(0.0, kMany))).word("off").goes_with(kSlope)
              .identifies(470, false, "0"),
  };
}

Rows schedule_rows() {
  return {
      Row("--lr", "Learning rate", number(in(&C::lr), above_zero())).daily().identifies(30).changeable(),
      Row("--schedule", "Learning-rate schedule",
          choice(in(&C::schedule))).daily().identifies(60, true, "staircase").changeable(),
      Row("--lr-decay-factor", "Factor of the rate at each drop (staircase, steps)",
          number(in(&C::lr_decay_factor), {.low = 0.0, .high = 1.0, .without_low = true}))
              .goes_with({"--schedule", {"staircase", "steps"}}).identifies(70, true).changeable(),
      Row("--epochs-per-decay", "Epochs between drops (staircase)",
          number(in(&C::epochs_per_decay), above_zero())).goes_with({"--schedule", {"staircase"}})
              .identifies(80, true).changeable(),
      Row("--decay-at", "Drops as fractions of the run: 0.5,0.75 (steps)",
          fractions(&C::decay_at)).goes_with({"--schedule", {"steps"}}).identifies(230).changeable(),
      Row("--initial-lr-share", "Share of --lr in the first step (one-cycle)",
          number(in(&C::initial_lr_share), between(0.0, 1.0))).goes_with({"--schedule", {"one-cycle"}})
              .identifies(250).changeable(),
      Row("--final-lr-share", "Share of --lr left at the end of the run",
          number(in(&C::final_lr_share), between(0.0, 1.0))).goes_with(kSlope).identifies(240).changeable(),
      Row("--lr-scaling", "Scaling of the rate with global batch / 128",
          choice(in(&C::lr_scaling))).daily().identifies(90).changeable(),
      Row("--warmup-epochs", "Epochs of linear warm-up",
          number(in(&C::warmup_epochs), between(0.0, kMany))).daily().identifies(100).changeable(),
  };
}

Rows report_rows() {
  return {
      Row("--log-every", "Steps between log lines", number(in(&C::log_every), at_least(1))),
      Row("--show-kernels", "List the kernels of each layer at the start", flag(&C::show_kernels)),
      Row("--tensorboard", "Write event files for TensorBoard", on_off(in(&C::tensorboard))),
      Row("--summary-every", "Steps between histograms of weights and activations",
          number(in(&C::summary_every), at_least(0))).word("off"),
      Row("--trace", "Steps to trace for ui.perfetto.dev, such as 1000-1009", trace_window(&C::trace)),
      Row("--eval-every", "Epochs between evaluations on the test set; end: only one",
          number(in(&C::eval_every), above_zero())).daily().word("end"),
      Row("--patience", "Evaluations without a better accuracy that end the run",
          number(in(&C::patience), at_least(0))).word("off"),
      Row("--views", "Views of a test image: 1, 2 (mirrored) or 6 (also moved)",
          one_of({"1", "2", "6"}, [](const C& c) { return std::to_string(c.views); },
                 [](C& c, const std::string& text) { c.views = std::stoi(text); })),
      Row("--checkpoint-every", "Steps between checkpoints", number(in(&C::checkpoint_every), at_least(1))),
      Row("--checkpoint-minutes", "Longest time between checkpoints",
          number(in(&C::checkpoint_minutes), above_zero())).word("never"),
      Row("--check-every", "Steps between comparisons of the ranks' parameters",
          number(in(&C::check_every), at_least(1))),
      Row("--keep", "Number of newest checkpoints to keep", number(in(&C::keep), at_least(1))),
      Row("--keep-every", "Also keep checkpoints of steps divisible by this",
          number(in(&C::keep_every), at_least(0))).word("off"),
      Row("--keep-best", "Also keep the best checkpoint; needs --eval-every", flag(&C::keep_best)),
  };
}
// clang-format on

std::vector<Option> all_rows() {
  std::vector<Option> all;
  const auto add = [&](std::string_view group, Rows rows) {
    for (Row& row : rows) {
      row.group = group;
      all.push_back(std::move(row));
    }
  };
  add("Run", run_rows());
  add("Model and device", model_rows());
  add("Length, batches and samples", sample_rows());
  add("Gradient exchange", exchange_rows());
  add("Optimizer", optimizer_rows());
  add("Learning rate", schedule_rows());
  add("Reports and checkpoints", report_rows());
  return all;
}

const Option& option_called(std::string_view name) {
  return *std::ranges::find(options(), name, &Option::name);
}

bool has_needed_value(const Needs& needs, const TrainConfig& config) {
  const std::string value = option_called(needs.option).value.text(config);
  return std::ranges::find(needs.values, value) != needs.values.end();
}

/// "--update server --aggregate async"
std::string text_of(const Needs& needs) {
  const Needs& before = option_called(needs.option).needs;
  std::string text = before.option.empty() ? "" : text_of(before) + " ";
  text += needs.option;
  for (const std::string_view value : needs.values) {
    if (value != "true") text += concat(value == needs.values.front() ? " " : " or ", value);
  }
  return text;
}

/// What a value must be; names the word for 0, if there is one.
std::string or_word(const Option& option, const std::string& must) {
  return option.zero.empty() ? must : concat(must, ", or ", option.zero);
}

void refuse_unused(const Option& option, const TrainConfig& config) {
  const std::string given = shown(option, config);
  const std::string value = option.value.takes.empty() ? "" : " " + given;
  std::string found;
  for (const Needs* needs = &option.needs; !needs->option.empty();
       needs = &option_called(needs->option).needs) {
    if (!has_needed_value(*needs, config)) found = shown(option_called(needs->option), config);
  }
  const bool of_flag = found == "false";
  // The model's recipe may set an option that is left out.
  const TrainConfig standard;
  const std::string advice = config.model == standard.model || option.value.takes.empty()
                                 ? "; leave it out"
                                 : concat("; give ", option.name, ' ', shown(option, standard));
  throw Error(ErrorKind::usage, option.name, value, " works only with ", text_of(option.needs),
              of_flag ? "" : ", not with " + found, *option.needs.reason != '\0' ? ": " : "",
              option.needs.reason, advice);
}

}  // namespace

const std::vector<Option>& options() {
  static const std::vector<Option> all = all_rows();
  return all;
}

std::string shown(const Option& option, const TrainConfig& config) {
  std::string text = option.value.text(config);
  return text == "0" && !option.zero.empty() ? std::string(option.zero) : text;
}

std::string read(const Option& option, TrainConfig& config, const std::string& text) {
  if (option.zero.empty()) return option.value.read(config, text);
  if (text == option.zero) return option.value.read(config, "0");
  TrainConfig changed = config;
  std::string refusal = option.value.read(changed, text);
  if (refusal.empty() && shown(option, changed) == option.zero) refusal = option.value.out_of_range(changed);
  if (!refusal.empty()) return or_word(option, refusal);
  config = std::move(changed);
  return {};
}

std::vector<std::string> changeable_options() {
  std::vector<std::string> names{"steps", "epochs"};
  for (const Option& option : options()) {
    if (option.identity.may_change) names.emplace_back(option.name.substr(2));
  }
  return names;
}

std::vector<std::string> items_of(const std::vector<std::string>& names) {
  std::vector<std::string> items;
  const auto named = [&](std::string_view option) {
    return !option.empty() && std::ranges::find(names, option.substr(2)) != names.end();
  };
  for (const Option& option : options()) {
    if (option.identity.may_change && (named(option.name) || named(option.needs.option)))
      items.emplace_back(option.name);
  }
  if (named("--steps") || named("--epochs") || named("--schedule")) items.emplace_back(run::kLength);
  return items;
}

bool is_used(const Option& option, const TrainConfig& config) {
  const Needs& needs = option.needs;
  return needs.option.empty() ||
         (has_needed_value(needs, config) && is_used(option_called(needs.option), config));
}

void check_options(const TrainConfig& config) {
  const TrainConfig standard;
  for (const Option& option : options()) {
    const bool is_word = !option.zero.empty() && shown(option, config) == option.zero;
    if (const std::string wrong = option.value.out_of_range(config); !wrong.empty() && !is_word)
      throw Error(ErrorKind::usage, option.name, ' ', or_word(option, wrong), ", not ",
                  shown(option, config));
  }
  for (const Option& option : options()) {
    if (!is_used(option, config) && option.value.text(config) != option.value.text(standard))
      refuse_unused(option, config);
  }
}

void refuse_without_effect(const TrainConfig& config, const std::function<bool(std::string_view)>& given) {
  if (config.model != TrainConfig().model) return;
  const auto asks_for_nothing = [&](const Option& option) {
    const std::string value = shown(option, config);
    return value == "false" || value == "off" || value == "full";
  };
  for (const Option& option : options()) {
    if (!is_used(option, config) && given(option.name) && !asks_for_nothing(option))
      refuse_unused(option, config);
  }
}

std::string exact(double value) {
  for (int digits = 6; digits < 17; ++digits) {
    std::string text = fmt::format("{:.{}g}", value, digits);
    if (std::strtod(text.c_str(), nullptr) == value) return text;  // std::stod throws for subnormals
  }
  return fmt::format("{:.17g}", value);
}

}  // namespace cifar_mpi::config
