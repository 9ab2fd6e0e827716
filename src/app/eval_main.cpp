#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "app/device.hpp"
#include "app/eval_output.hpp"
#include "app/help.hpp"
#include "app/onnx.hpp"
#include "app/program.hpp"
#include "app/signals.hpp"
#include "app/toml.hpp"
#include "app/values.hpp"
#include "cifar_mpi/base/atomic_file.hpp"
#include "cifar_mpi/base/input_file.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/data/dataset.hpp"
#include "cifar_mpi/data/image_folder.hpp"
#include "cifar_mpi/evaluation/evaluate_checkpoint.hpp"
#include "cifar_mpi/run/checkpoint.hpp"
#include "cifar_mpi/run/run_directory.hpp"
#include "cifar_mpi/watch/watchdog.hpp"

namespace {

using namespace cifar_mpi;

struct EvalOptions {
  std::string checkpoint = "runs/tutorial";
  std::string device = "auto";
  std::string weights = "ema";
  std::string precision = "auto";
  bool watch = false;
  std::string export_onnx;
  std::vector<std::string> predict;
  std::string predictions;
  bool json = false;
  bool force = false;
  double interval_s = 5.0;
  double timeout_s = 120.0;
  evaluation::EvaluationConfig config;
};

/// Rank 0 prints the result and writes the file of --predictions. Collective.
void report(const EvalOptions& options, const comm::World& world, const Log& log, const std::string& path,
            const evaluation::Evaluation& found) {
  for (const std::string& doubt : found.doubts) log.warn(doubt);
  const app::EvaluatedCheckpoint checkpoint{path, options.weights, options.config.views};
  world.together([&] {
    if (world.rank() != 0 || options.predictions.empty()) return;
    const data::DatasetFile data(options.config.data);
    app::write_predictions(options.predictions, checkpoint, found, data.read_labels(data::Split::test),
                           data.read_files(data::Split::test));
  });
  if (!options.json) return app::print_evaluation(log, checkpoint, found);
  if (world.rank() == 0) write_flushed(stdout, app::evaluation_json(checkpoint, found));
}

/// Stores results in the run directory; if it is read-only, only logs that.
void keep(const Directory& run, const Log& log, const evaluation::Evaluation& evaluation) {
  if (!run) return;
  const DirectoryEntry file = run / "evaluation.h5";
  if (!evaluation.same_classes)
    return log.info(concat(file.path(), " is left as it is, because the classes have other names"));
  try {
    run::write_evaluation(file, evaluation.record);
    log.info(concat("stored in ", file.path(), " with the list of misclassified images; cifar_mpi_report ",
                    run.path(), " shows it"));
  } catch (const Error& reason) {
    log.warn(concat("the result is not stored: ", reason.what()));
  }
}

bool is_folder(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

/// The dataset that the last start of a run named, unless it is gone; empty if that is unknown. Throws
/// Error{usage} if the file that names it is not valid.
std::string dataset_of_run(const std::string& run_dir) {
  constexpr std::size_t kMost = std::size_t{1} << 20;
  std::error_code error;
  if (!is_folder(run_dir)) return {};
  const Directory run(run_dir);
  const DirectoryEntry file = run / "config.toml";
  const std::optional<SmallFile> config = read_small_file(file, kMost);
  if (!config) return {};
  try {
    for (const app::TomlItem& item : app::parse_toml(config->content, file.path())) {
      if (item.key == "data" && std::filesystem::exists(item.value, error)) return item.value;
    }
    return {};
  } catch (const Error& damage) {
    throw Error(damage.kind(), damage.what(), "; correct it, or name the run's dataset with --data");
  }
}

/// Throws Error{usage} for options that have no effect with the others.
void refuse_unused(const CLI::App& cli, const EvalOptions& options) {
  const bool exports = !options.export_onnx.empty();
  for (const std::string other :
       {"--device", "--precision", "--threads", "--batch-size", "--views", "--json"}) {
    if (exports && cli.get_option(other)->count() > 0)
      throw Error(ErrorKind::usage, other, " is for evaluations, but --export-onnx makes none; leave it out");
  }
  if (options.force && !exports && options.predictions.empty())
    throw Error(
        ErrorKind::usage,
        "--force works only with --predictions or --export-onnx, whose files it overwrites; leave it out");
  if (!exports && options.predict.empty()) return;
  const char* const unused = options.config.other_classes
                                 ? "--other-classes accepts a dataset with other classes"
                             : !options.config.data.empty() ? "--data names a dataset"
                                                            : nullptr;
  if (unused != nullptr)
    throw Error(ErrorKind::usage, unused, ", but ", exports ? "--export-onnx" : "--predict",
                " reads no dataset; leave it out");
}

/// A checkpoint of a run directory as seen by this rank.
InputFile open_on_this_rank(const std::string& run_dir, std::uint64_t step) try {
  return run::open_checkpoint(Directory(run_dir), step);
} catch (const Error& error) {
  return {run::checkpoint_path(run_dir, step), error.what()};
}

/// Set by a signal.
std::atomic<int> stop_request{0};

/// Whether a stop was requested on any rank; collective.
bool stop_asked(const comm::World& world) {
  return world.any(stop_request.load(std::memory_order_relaxed) != 0);
}

void sleep_unless_asked(double seconds) {
  for (double slept = 0.0; slept < seconds && stop_request.load(std::memory_order_relaxed) == 0;
       slept += 0.05)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

/// Rank 0's view of a run directory: finds the next checkpoint, at first the newest.
class Follower {
 public:
  explicit Follower(std::string run_dir) : run_dir_(std::move(run_dir)) {}

  /// The step of the first checkpoint after the one evaluated last; if there is none and that one is gone, of the newest, since
  /// the run may have been started anew. Before the first evaluation, that of the newest which can be read. Reopens the
  /// directory, which may not have existed.
  std::optional<std::uint64_t> look() {
    std::vector<std::uint64_t> steps;
    try {
      run_ = Directory(run_dir_);
      steps = run::list_checkpoints(run_);
    } catch (const Error&) {  // the file system may come back
    }
    if (steps.empty()) return std::nullopt;
    if (newest_ != steps.back()) below_ = kAny;
    newest_ = steps.back();
    if (!evaluated_) {
      const auto end = std::ranges::lower_bound(steps, below_);
      return end == steps.begin() ? newest_ : *std::prev(end);
    }
    const auto next = std::ranges::upper_bound(steps, *evaluated_);
    if (next != steps.end()) return *next;
    return newest_ == evaluated_ ? std::nullopt : std::optional(newest_);
  }
  /// As opened for the last check.
  const Directory& run() const { return run_; }
  void note_evaluated(std::uint64_t step) { evaluated_ = step; }
  /// Warns, once per file of this name, that it could not be read. The newest one is tried again: it may not be visible on
  /// a node yet, or may be rewritten. Before the first evaluation the one before it is tried first.
  void note_unreadable(std::uint64_t step, const std::string& why, const Log& log) {
    if (!run_) return;
    if (reported_.emplace(step, run::open_checkpoint(run_, step).modified_s()).second)
      log.warn(concat("skipping a checkpoint that cannot be read: ", why));
    if (!evaluated_) {
      below_ = step;
    } else if (step != newest_) {
      evaluated_ = step;
    }
  }

 private:
  static constexpr std::uint64_t kAny = std::numeric_limits<std::uint64_t>::max();

  std::string run_dir_;
  Directory run_;
  std::optional<std::uint64_t> evaluated_;
  std::uint64_t newest_ = 0;
  std::uint64_t below_ = kAny;  ///< before the first evaluation: this one and later ones could not be read
  std::set<std::pair<std::uint64_t, double>> reported_;  ///< step and time of each file
};

/// Rank 0's answer on all ranks: the next step.
std::optional<std::uint64_t> agreed(std::optional<std::uint64_t> step, const comm::World& world) {
  world.broadcast(step);
  return step;
}

/// The checkpoint on all ranks; empty, with a warning, when a rank cannot read it or reads another.
std::optional<run::Checkpoint> try_to_read(std::uint64_t step, const InputFile& file,
                                           const comm::World& world, const Log& log, comm::Heartbeat& heart,
                                           Follower& follower) {
  try {
    return evaluation::read_on_all_ranks(file, world, heart);
  } catch (const comm::AgreedError& error) {
    if (error.kind() != ErrorKind::checkpoint && error.kind() != ErrorKind::usage) throw;
    follower.note_unreadable(step, error.what(), log);
    return std::nullopt;
  }
}

/// Checks early what would otherwise fail at the first checkpoint, perhaps hours later. Returns a sentence if there
/// is no checkpoint yet.
std::string prepare_to_watch(const EvalOptions& options) {
  std::error_code error;
  const bool there = std::filesystem::exists(options.checkpoint, error);
  if (there && !is_folder(options.checkpoint)) {
    throw Error(ErrorKind::usage, "--watch follows a run directory, but ", options.checkpoint, " is not one");
  }
  static_cast<void>(data::DatasetFile(options.config.data));
  if (there && !run::list_checkpoints(Directory(options.checkpoint)).empty()) return {};
  return concat("waiting for the first checkpoint, ", options.checkpoint, "/checkpoints/step_*.h5",
                there ? "" : "; that run directory does not exist yet, so check its name or start the run");
}

/// Evaluates each new checkpoint of a run directory until a stop request, which is its regular end; waits for
/// the first checkpoint.
void watch(const EvalOptions& options, comm::World& world, const Log& log, comm::Heartbeat& heart) {
  app::handle_stop_signals(stop_request);
  std::string waits;
  world.together([&] { waits = prepare_to_watch(options); });
  if (!waits.empty()) log.info(waits);
  Follower follower(options.checkpoint);
  while (heart.activity = comm::Activity::watching, !stop_asked(world)) {
    const auto step = agreed(world.rank() == 0 ? follower.look() : std::nullopt, world);
    std::optional<run::Checkpoint> checkpoint;
    std::string path;
    if (step) {
      const InputFile file = world.rank() == 0 ? run::open_checkpoint(follower.run(), *step)
                                               : open_on_this_rank(options.checkpoint, *step);
      path = file.path();
      checkpoint = try_to_read(*step, file, world, log, heart, follower);
    }
    if (!checkpoint) {
      sleep_unless_asked(options.interval_s);
      continue;
    }
    const evaluation::Evaluation found = evaluation::evaluate_checkpoint(
        options.config, std::move(*checkpoint), path, world, app::platform_for(options.device), heart);
    report(options, world, log, path, found);
    keep(follower.run(), log, found);
    follower.note_evaluated(*step);
  }
}

/// The named file, or the newest checkpoint of a run directory, which rank 0 opens as `run`.
InputFile open_asked(const EvalOptions& options, const comm::World& world, Directory& run) {
  std::optional<std::uint64_t> newest;
  world.together([&] {
    if (world.rank() != 0 || !is_folder(options.checkpoint)) return;
    run = Directory(options.checkpoint);
    newest = evaluation::newest_checkpoint(run);
  });
  const auto step = agreed(newest, world);
  if (!step) {
    InputFile file = run::open_checkpoint(options.checkpoint);
    world.together([&] {
      if (world.rank() == 0) run::require_checkpoint(file);  // the export reads on rank 0 alone
    });
    return file;
  }
  return run ? run::open_checkpoint(run, *step) : open_on_this_rank(options.checkpoint, *step);
}

/// Writes the checkpoint's network and weights as ONNX; rank 0 alone. Needs no dataset.
void export_onnx(const EvalOptions& options, const comm::World& world, const Log& log) {
  world.together([&] {
    if (world.rank() != 0) return;
    require_like_or_nothing(options.export_onnx, app::onnx_begin(), "a model of cifar_mpi_eval",
                            "--export-onnx");
    app::prepare_output(options.export_onnx, options.force);
  });
  Directory run;
  const InputFile file = open_asked(options, world, run);
  world.together([&] {
    if (world.rank() != 0) return;
    run::Checkpoint checkpoint = run::read_checkpoint(file);
    const evaluation::RecordedNetwork recorded = evaluation::recorded_network(checkpoint, file.path());
    recorded.require_moments(file.path());
    for (const std::string& doubt : recorded.assumed) log.warn(doubt);
    const evaluation::Network& network = recorded.network;
    const auto role = options.config.weights == evaluation::Weights::ema ? optim::StateRole::average
                                                                         : optim::StateRole::weights;
    const std::string* const labels = find_item(checkpoint.progress.identity, "dataset label names");
    const std::string model = app::onnx_model(
        network, run::match_tensors(std::move(checkpoint.state[role]), network.params, file.path()),
        {{"classes", labels == nullptr ? "" : *labels},
         {"weights", options.weights},
         {"step", std::to_string(checkpoint.progress.step)}});
    write_atomically(options.export_onnx, model);
    log.info(concat("wrote ", options.export_onnx, ": ", network.net.name, " with the ", options.weights,
                    " weights of step ", checkpoint.progress.step));
  });
}

data::ImageSize read_image(const std::string& path, int size, std::span<std::uint8_t> out) try {
  return data::read_image(path, size, out);
} catch (const Error& error) {
  if (error.kind() != ErrorKind::data) throw;  // not an error of the file
  throw Error(error.kind(), error.what(), "; --predict takes readable, whole PNG and JPEG files");
}

/// Classifies image files, which rank 0 reads. Needs no dataset.
void predict(const EvalOptions& options, const comm::World& world, const Log& log, comm::Heartbeat& heart) {
  Directory run;
  const InputFile file = open_asked(options, world, run);
  run::Checkpoint checkpoint = evaluation::read_on_all_ranks(file, world, heart);
  app::PredictedImages images{options.predict, {}, 0};
  std::vector<std::uint8_t> pixels;
  world.together([&] {
    const Extent image = evaluation::recorded_network(checkpoint, file.path()).network.augment.source;
    if (image.height != image.width || image.channels != 3)
      throw Error(ErrorKind::usage, file.path(), " was trained on ", to_string(image),
                  " images, but --predict makes ",
                  "square RGB images; pack the images as a dataset and use --predictions");
    images.size = image.width;
    if (world.rank() != 0) return;
    const auto bytes = static_cast<std::size_t>(image.count());
    pixels.resize(images.paths.size() * bytes);
    for (std::size_t i = 0; i < images.paths.size(); ++i)
      images.sizes.push_back(
          read_image(images.paths[i], images.size, std::span(pixels).subspan(i * bytes, bytes)));
  });
  const evaluation::Evaluation found =
      evaluation::classify_images(options.config, std::move(checkpoint), file.path(), std::move(pixels),
                                  world, app::platform_for(options.device), heart);
  for (const std::string& doubt : found.doubts) log.warn(doubt);
  if (world.rank() != 0) return;
  if (!options.json) return app::print_predictions(log, images, found);
  write_flushed(stdout,
                app::predictions_json({file.path(), options.weights, options.config.views}, images, found));
}

int evaluate(EvalOptions options, comm::World& world) {
  watch::Watchdog watchdog(world, {options.timeout_s, {}, app::poll_launcher});
  const Log log(world.rank(), options.json ? stderr : stdout);
  if (!options.export_onnx.empty()) return export_onnx(options, world, log), 0;
  if (!options.predict.empty()) return predict(options, world, log, watchdog.heart()), 0;
  options.config.keep_logits = !options.predictions.empty();
  world.together([&] {
    if (world.rank() == 0 && options.config.keep_logits)
      app::check_predictions_file(options.predictions, options.force);
  });
  Directory run;
  std::optional<InputFile> file;  // before the dataset, which a wrong path would miss
  if (!options.watch) file = open_asked(options, world, run);
  world.together([&] {
    if (options.config.data.empty()) options.config.data = dataset_of_run(options.checkpoint);
    options.config.data = app::find_dataset(options.config.data);
  });
  if (options.watch) return watch(options, world, log, watchdog.heart()), 0;
  const evaluation::Evaluation found = evaluation::evaluate_checkpoint(
      options.config, *file, world, app::platform_for(options.device), watchdog.heart());
  report(options, world, log, file->path(), found);
  keep(run, log, found);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App cli("Print the test accuracy of a checkpoint, in total and per class, on one or more ranks.",
               "cifar_mpi_eval");
  cli.option_defaults()->always_capture_default();
  EvalOptions options;
  cli.add_option("checkpoint", options.checkpoint, "Checkpoint, or run directory for its newest one");
  cli.add_option("--data", options.config.data, "Dataset file [the run's, $CIFAR_MPI_DATA, data/cifar10.h5]");
  cli.add_option("--weights", options.weights, "Moving averages of the weights (ema), or the weights")
      ->check(app::one_of({"ema", "raw"}));
  cli.add_option("--device", options.device, "Device; auto: the CPU if built in, else a GPU")
      ->check(app::one_of({"auto", "cpu", "cuda"}));
  cli.add_option("--precision", options.precision, "Arithmetic of the network")
      ->check(app::one_of({"auto", "fp32", "bf16"}));
  cli.add_option("--threads", options.config.threads, "CPU threads per rank; auto: a fair share of the cores")
      ->transform(app::threads())
      ->default_str("auto");
  cli.add_option("--batch-size", options.config.batch_size, "Images per rank at once; affects speed only")
      ->check(app::number(1, 1 << 16));
  cli.add_option("--views", options.config.views, "Views of each image: 1, 2 (mirrored) or 6 (also moved)")
      ->check(app::one_of({"1", "2", "6"}));
  auto* const watch = cli.add_flag("--watch", options.watch,
                                   "Evaluate each new checkpoint of a run directory until interrupted");
  auto* const predict = cli.add_option("--predict", options.predict, "Classify PNG and JPEG files instead")
                            ->option_text("IMAGE...")
                            ->default_str("")
                            ->excludes(watch);
  cli.add_option("--predictions", options.predictions,
                 "Also write the logits of all test images, .csv or .h5")
      ->option_text("FILE")
      ->excludes(watch)
      ->excludes(predict);
  cli.add_flag("--json", options.json, "Print the result as one JSON object");
  auto* const onnx =
      cli.add_option("--export-onnx", options.export_onnx, "Write the network as an ONNX model instead")
          ->option_text("FILE");
  for (const std::string other : {"--watch", "--predict", "--predictions"}) onnx->excludes(other);
  cli.add_flag("--other-classes", options.config.other_classes,
               "Accept a dataset whose classes have other names");
  cli.add_flag("--force", options.force, "Overwrite earlier results of --predictions or --export-onnx");
  cli.add_option("--interval", options.interval_s, "Seconds between two searches with --watch")
      ->needs(watch)
      ->check(app::number(0.05, 86400.0));
  cli.add_option("--timeout", options.timeout_s,
                 "Seconds without progress after which the job ends, or never")
      ->transform(app::timeout());
  app::add_help(cli,
                "Examples:\n  mpirun -np 2 cifar_mpi_eval runs/tutorial\n"
                "  cifar_mpi_eval --weights raw runs/tutorial/checkpoints/latest\n"
                "  cifar_mpi_eval runs/tutorial --predict cat.png dog.jpg\n");
  if (const auto code = app::parse(cli, argc, argv, [&] { refuse_unused(cli, options); })) return *code;
  options.config.weights = options.weights == "raw" ? evaluation::Weights::raw : evaluation::Weights::ema;
  options.config.precision = find_name<engine::Precision>(options.precision).value();
  const int code =
      app::run_in_world(cli, argc, argv, [&](comm::World& world) { return evaluate(options, world); });
  return app::finish("cifar_mpi_eval", code);
}
