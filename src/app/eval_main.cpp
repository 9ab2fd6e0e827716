#include <fmt/core.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "app/device.hpp"
#include "app/program.hpp"
#include "app/signals.hpp"
#include "app/values.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/data/dataset.hpp"
#include "cifar_mpi/run/checkpoint.hpp"
#include "cifar_mpi/run/run_directory.hpp"
#include "cifar_mpi/train/evaluate_checkpoint.hpp"
#include "cifar_mpi/watch/watchdog.hpp"

namespace {

using namespace cifar_mpi;

struct EvalOptions {
  std::string checkpoint = "runs/tutorial";
  std::string device = "auto";
  std::string weights = "ema";
  std::string precision = "auto";
  bool watch = false;
  double interval_s = 5.0;
  double timeout_s = 120.0;
  train::EvaluationConfig config;
};

void print(const Log& log, const std::string& path, const train::Evaluation& evaluation) {
  const train::Accuracy& accuracy = evaluation.accuracy;
  for (const std::string& doubt : evaluation.doubts) log.warn(doubt);
  log.info(concat(path, ": step ", evaluation.step, ", ", accuracy.count(), " test images, cross-entropy ",
                  fmt::format("{:.4f}", accuracy.cross_entropy)));
  for (std::size_t c = 0; c < accuracy.classes.size(); ++c) {
    const auto [correct, count] = accuracy.classes[c];
    const double share = count == 0 ? 0.0 : static_cast<double>(correct) / static_cast<double>(count);
    log.info(fmt::format("  {:<12} {:.4f}  ({} of {})", evaluation.label_names[c], share, correct, count));
  }
  log.info(fmt::format("precision @ 1 = {:.4f}", accuracy.precision_at_1()));
}

/// Keeps in a run directory what was found there; another's may be read-only, and then it is only said.
void keep(const EvalOptions& options, const comm::World& world, const Log& log,
          const train::Evaluation& evaluation) {
  std::error_code error;
  if (world.rank() != 0 || !std::filesystem::is_directory(options.checkpoint, error)) return;
  try {
    run::write_evaluation(options.checkpoint + "/evaluation.h5", evaluation.record);
  } catch (const Error& reason) {
    log.warn(concat("what was found is not kept: ", reason.what()));
  }
}

/// Rank 0's answer to "which checkpoint now", on all ranks.
std::string newest(const EvalOptions& options, const comm::World& world) {
  std::string path;
  world.together([&] {
    if (world.rank() == 0) path = train::resolve_checkpoint(options.checkpoint);
  });
  world.broadcast(path);
  return path;
}

/// Set by a signal.
std::atomic<int> stop_request{0};

/// Whether any rank was asked to stop; asked and answered on all of them.
bool stop_asked(const comm::World& world) {
  std::array<double, 1> asked{static_cast<double>(stop_request.load(std::memory_order_relaxed))};
  world.sum(asked);
  return asked[0] > 0.0;
}

void sleep_unless_asked(double seconds) {
  for (double slept = 0.0; slept < seconds && stop_request.load(std::memory_order_relaxed) == 0;
       slept += 0.05)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

/// Rank 0's view of a run directory: which checkpoint is the next.
class Follower {
 public:
  explicit Follower(std::string run_dir) : run_dir_(std::move(run_dir)) {}

  /// The newest one unless it was evaluated before; else empty.
  std::string look() const {
    std::vector<run::CheckpointFile> files;
    try {
      files = run::list_checkpoints(run_dir_);
    } catch (const Error&) {  // a file system that is away may come back
    }
    return files.empty() || files.back().path == evaluated_ ? std::string() : files.back().path;
  }
  void note_evaluated(const std::string& path) { evaluated_ = path; }
  /// Says, once for each file that stood under this name, that it could not be read. It stays the next one: a
  /// node may not see it yet, or it is written anew.
  void note_unreadable(const std::string& path, const std::string& why, const Log& log) {
    std::error_code gone;
    const Version version{path, std::filesystem::last_write_time(path, gone)};
    if (version != reported_) log.warn(concat("skipping a checkpoint that cannot be read: ", why));
    reported_ = version;
  }

 private:
  using Version = std::pair<std::string, std::filesystem::file_time_type>;

  std::string run_dir_;
  std::string evaluated_;
  Version reported_;
};

/// The checkpoint on all ranks; nothing, with a warning, when one of them cannot read it or reads another.
std::optional<run::Checkpoint> try_to_read(const std::string& path, const comm::World& world, const Log& log,
                                           comm::Heartbeat& heart, Follower& follower) {
  try {
    return train::read_on_all_ranks(path, world, heart);
  } catch (const comm::AgreedError& error) {
    if (error.kind() != ErrorKind::checkpoint && error.kind() != ErrorKind::usage) throw;
    follower.note_unreadable(path, error.what(), log);
    return std::nullopt;
  }
}

/// Evaluates each new checkpoint of a run directory until it is asked to stop, which is its regular end; a
/// directory without any is waited for.
void watch(const EvalOptions& options, comm::World& world, const Log& log, comm::Heartbeat& heart) {
  app::handle_stop_signals(stop_request);
  bool waits = false;
  world.together([&] {  // what would else be found only when there is a checkpoint, perhaps hours later
    std::error_code error;
    if (std::filesystem::exists(options.checkpoint, error) &&
        !std::filesystem::is_directory(options.checkpoint, error)) {
      throw Error(ErrorKind::usage,
                  concat("--watch follows a run directory, but ", options.checkpoint, " is none"));
    }
    static_cast<void>(data::DatasetFile(options.config.data));
    waits = run::list_checkpoints(options.checkpoint).empty();
  });
  if (waits)
    log.info(concat("waiting for the first checkpoint, ", options.checkpoint, "/checkpoints/step_*.h5"));
  Follower follower(options.checkpoint);
  while (heart.activity = comm::Activity::watching, !stop_asked(world)) {
    std::string path = world.rank() == 0 ? follower.look() : std::string();
    world.broadcast(path);
    auto checkpoint = path.empty() ? std::nullopt : try_to_read(path, world, log, heart, follower);
    if (!checkpoint) {
      sleep_unless_asked(options.interval_s);
      continue;
    }
    const train::Evaluation found = train::evaluate_checkpoint(
        options.config, std::move(*checkpoint), path, world, app::platform_for(options.device), heart);
    print(log, path, found);
    keep(options, world, log, found);
    follower.note_evaluated(path);
  }
}

int evaluate(EvalOptions options, comm::World& world) {
  watch::Watchdog watchdog(world, {options.timeout_s, {}, app::poll_launcher});
  const Log log(world.rank());
  world.together([&] { options.config.data = app::find_dataset(options.config.data); });
  if (options.watch) return watch(options, world, log, watchdog.heart()), 0;
  const std::string path = newest(options, world);
  const train::Evaluation found = train::evaluate_checkpoint(
      options.config, path, world, app::platform_for(options.device), watchdog.heart());
  print(log, path, found);
  keep(options, world, log, found);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App cli(
      "Prints the test accuracy of a checkpoint, over all classes and per class; on one rank or more.",
      "cifar_mpi_eval");
  EvalOptions options;
  cli.add_option("checkpoint", options.checkpoint, "A checkpoint, or a run directory (its newest one)")
      ->check(app::not_empty())
      ->capture_default_str();
  cli.add_option(
      "--data", options.config.data,
      "Dataset file; else $CIFAR_MPI_DATA, else data/cifar10.h5 here or beside the binary's folder");
  cli.add_option("--weights", options.weights, "ema: the moving averages; raw: the weights themselves")
      ->check(CLI::IsMember({"ema", "raw"}))
      ->capture_default_str();
  cli.add_option("--device", options.device)
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  cli.add_option("--precision", options.precision, "Arithmetic of activations")
      ->check(CLI::IsMember({"auto", "fp32", "bf16"}))
      ->capture_default_str();
  cli.add_option("--threads", options.config.threads, "CPU threads per rank; 0: a fair share")
      ->check(app::number(0, 4096))
      ->capture_default_str();
  cli.add_option("--batch-size", options.config.batch_size, "Images per rank and replay; affects speed only")
      ->check(app::number(1, 1 << 16))
      ->capture_default_str();
  cli.add_flag("--watch", options.watch,
               "Follow a run directory and evaluate each new checkpoint until interrupted");
  cli.add_option("--interval", options.interval_s, "Seconds between looks with --watch")
      ->check(app::number(0.05, 86400.0))
      ->capture_default_str();
  cli.add_option("--timeout", options.timeout_s,
                 "Seconds without progress after which the job is ended and the rank that does not move "
                 "named; five times as long while starting; 0: never")
      ->check(app::timeout())
      ->capture_default_str();
  app::add_version(cli);
  if (const auto code = app::parse(cli, argc, argv)) return *code;
  options.config.weights = options.weights == "raw" ? train::Weights::raw : train::Weights::ema;
  options.config.precision = find_name<engine::Precision>(options.precision).value();
  const int code =
      app::run_in_world(cli, argc, argv, [&](comm::World& world) { return evaluate(options, world); });
  return app::finish("cifar_mpi_eval", code);
}
