#include "cifar_mpi/bench/ways_benchmark.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <fstream>
#include <limits>
#include <numeric>
#include <sstream>
#include <thread>
#include <utility>

#include "bench/benchmark_parts.hpp"
#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/report/metrics.hpp"
#include "cifar_mpi/step/step.hpp"
#include "step/step_recording.hpp"

namespace cifar_mpi::bench {
namespace {

std::vector<std::string> words_of(const std::string& way) {
  std::vector<std::string> words;
  std::istringstream text(way + ':');
  for (std::string word; std::getline(text, word, ':');) words.push_back(word);
  return words;
}

bool read_number(const std::string& word, int least, int most, int& value) {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  return error == std::errc{} && end == word.data() + word.size() && value >= least && value <= most;
}

constexpr int kMost = std::numeric_limits<int>::max();

bool choose_local(optim::LocalSteps& local, const std::vector<std::string>& words) {
  if (words.size() == 3 && words[2] == to_string(optim::OuterKind::nesterov)) {
    local.outer = optim::OuterKind::nesterov;
  } else if (words.size() != 2) {
    return false;
  }
  return read_number(words[1], 1, optim::kMostLocalSteps, local.steps);
}

bool choose_server(config::TrainConfig& config, const std::vector<std::string>& words) {
  if (words.size() < 2 || !read_number(words[1], 1, kMost, config.servers)) return false;
  comm::Aggregation& aggregation = config.aggregation;
  aggregation.asynchronous = words.size() > 2 && words[2] == "async";
  if (!aggregation.asynchronous)
    return words.size() == 2 || (words.size() == 3 && read_number(words[2], 1, kMost, aggregation.pushes));
  int drift = 0;
  if (words.size() == 3) return true;
  if (words.size() != 4 || !read_number(words[3], 0, kMost, drift)) return false;
  aggregation.most_drift = static_cast<std::uint64_t>(drift);
  return true;
}

/// A run by one way: first some steps that are not measured, then those that are. If each push makes a step,
/// a few more follow, because workers wait for each other before the last step of a run.
struct Steps {
  config::TrainConfig config;
  std::uint64_t of_replay = 1;
  std::uint64_t before = 0, measured = 0, after = 0;

  std::uint64_t all() const { return before + measured + after; }
};

Steps steps_of(const WaysBenchmarkConfig& config, const std::string& way, int ranks) {
  Steps steps;
  steps.config = benchmark_config(config.model);
  config::TrainConfig& train = steps.config;
  choose_way(train, way);
  train.batch_size = config.batch_size;
  train.threads = 1;
  if (train.update != comm::UpdateKind::server) {
    train.all_reduce = config.all_reduce;
    train.wire = config.wire;
    train.bucket_mib = config.bucket_mib;
  }
  const bool local = train.update == comm::UpdateKind::local;
  if (local) steps.of_replay = static_cast<std::uint64_t>(train.local.steps);
  const auto workers = static_cast<std::uint64_t>(std::max(1, ranks - train.servers));
  const std::uint64_t round = train.aggregation.asynchronous ? workers : steps.of_replay;
  const double rounds = config.seconds / config.compute_s / static_cast<double>(steps.of_replay);
  steps.before = local ? round : 3 * round;
  steps.measured = round * static_cast<std::uint64_t>(std::max(1L, std::lround(rounds)));
  steps.after = train.aggregation.asynchronous ? 3 * round : 0;
  train.steps = train.checkpoint_every = train.check_every = static_cast<std::int64_t>(steps.all());
  return steps;
}

/// Sleeps, and lets messages make progress as often as a convolution does between its pieces. Moving them takes
/// processor time in addition to the sleep, as it delays a real computation.
void sleep_for(double seconds, engine::Lane& lane) {
  constexpr double kPiece = 0.5e-3;
  for (double left = seconds; left > 0.0;) {
    const double begin = steady_seconds();
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(kPiece, left)));
    left -= steady_seconds() - begin;
    lane.make_progress();
  }
}

/// The network's tasks are those that touch the arena, where activations lie.
bool computes(const engine::Task& task, const std::vector<engine::Bytes>& arena) {
  const auto within = [&](const std::vector<engine::Bytes>& ranges) {
    return std::ranges::any_of(ranges, [&](const engine::Bytes& range) {
      return std::ranges::any_of(arena, [&](const engine::Bytes& region) { return range.overlaps(region); });
    });
  };
  return within(task.reads) || within(task.writes);
}

/// The same program, except that each of the network's tasks sleeps for its share, by products, of
/// `*seconds`.
engine::StepProgram asleep(const engine::StepProgram& program, const std::vector<engine::Bytes>& arena,
                           const double* seconds) {
  double all = 0.0;
  for (const engine::Task& task : program.tasks()) all += computes(task, arena) ? task.cost.flops : 0.0;
  engine::StepProgram copy(concat(program.name(), report::kSlept));
  for (const engine::Instruction& line : program.instructions()) {
    if (line.op == engine::Op::set) copy.set(line.lane);
    if (line.op == engine::Op::wait) copy.wait(line.lane, line.target);
    if (line.op != engine::Op::run) continue;
    engine::Task task = program.tasks()[static_cast<std::size_t>(line.target)];
    if (computes(task, arena)) {
      task.start = [seconds, flops = task.cost.flops, all](engine::Lane& lane) {
        if (flops > 0.0) sleep_for(flops / all * *seconds, lane);
      };
    }
    copy.run(line.lane, std::move(task));
  }
  copy.finalize();
  return copy;
}

/// Returns the runner of its steps.
std::unique_ptr<engine::Runner> build(BenchmarkRun& run, const double* seconds,
                                      const comm::PlatformFactory& make_platform) {
  auto& [plan, device, blocks] = run;
  const auto gives_way = [&](engine::BackendOptions options) {
    options.oversubscribed = true;  // simulated nodes on one machine do not know of each other
    return make_platform(options);
  };
  plan.world.together([&] { run.build(gives_way); });
  step::share_kernels(plan, device);
  step::open_update(plan, device, blocks);
  std::unique_ptr<engine::Runner> runner;
  plan.world.together([&] {
    step::allocate_blocks(plan, device, blocks);
    step::write_step(device, blocks, 0);
    const bool local = plan.config.update == comm::UpdateKind::local;
    const auto step = local ? step::plan_local_steps(run.context(), {}) : step::plan_step(run.context(), {});
    const std::vector<engine::Bytes> activations =
        device.arena ? device.arena->regions() : std::vector<engine::Bytes>();
    runner = device.backend->runner(asleep(step->program(), activations, seconds),
                                    engine::RunnerKind::automatic, {});
    if (!plan.serves()) run.write_initial_state();
  });
  step::share_state(plan, device, blocks.state);
  return runner;
}

/// Bytes that this node's network devices sent and received so far, without the loopback.
double network_bytes() {
  std::ifstream devices("/proc/net/dev");
  double sum = 0.0;
  for (std::string line; std::getline(devices, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || line.substr(0, colon).ends_with("lo")) continue;
    std::istringstream numbers(line.substr(colon + 1));
    constexpr int kReceived = 0, kSent = 8;
    double number = 0.0;
    for (int i = 0; i <= kSent && numbers >> number; ++i) sum += i == kReceived || i == kSent ? number : 0.0;
  }
  return sum;
}

/// The time at which this rank saw that so many steps are done.
struct Moment {
  std::uint64_t step = 0;
  double seconds = 0.0;
  double bytes = 0.0;
};

/// Replays the program of a run, and records samples of its steps if it is asked to.
class Replays {
 public:
  /// `seconds`: of computing per replay. Collective.
  Replays(BenchmarkRun& run, const Steps& steps, const double* seconds,
          const comm::PlatformFactory& make_platform, const std::string& record)
      : runner_(build(run, seconds, make_platform)),
        counter_(run.blocks.step_counter.as<const std::uint64_t>()),
        of_replay_(steps.of_replay) {
    if (record.empty()) return;
    run.plan.world.together([&] {
      if (run.plan.world.rank() == 0) prepare_folder(record);
      run.plan.run = &folder_;
      run.plan.sizes.steps_per_epoch = 0.0;  // as many samples as there may be
      recording_.emplace(run.plan, *run.blocks.update, *runner_, std::vector<std::uint64_t>{},
                         engine::Replay{0, of_replay_});
    });
  }

  Moment until(std::uint64_t step) {
    while (*counter_ < step) {
      if (recording_) recording_->before_launch({*counter_, *counter_ + of_replay_});
      runner_->replay();
      runner_->finish();
    }
    return {*counter_, steady_seconds(), network_bytes()};
  }

  /// Writes what was recorded. Collective.
  void finish() {
    if (recording_) recording_->finish();
  }

 private:
  void prepare_folder(const std::string& record) {
    folder_ = Directory::make(record);
    if (exists(folder_ / "metrics.jsonl"))
      throw Error(ErrorKind::usage, record, " holds a training run; give --record another folder");
    remove_file(folder_ / "timeline.h5");  // of an earlier recording
  }

  std::unique_ptr<engine::Runner> runner_;
  const std::uint64_t* counter_;
  std::uint64_t of_replay_;
  Directory folder_;
  std::optional<step::StepRecording> recording_;
};

std::optional<double> most_per_step(const std::vector<std::uint64_t>& bytes, std::uint64_t steps) {
  return static_cast<double>(std::ranges::max(bytes)) / static_cast<double>(steps);
}

void add_pushes(const comm::PushCounts& pushes, std::uint64_t steps, WayBenchmark& result) {
  const auto sum = [](const std::vector<std::uint64_t>& counts) {
    return static_cast<double>(std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}));
  };
  const double all = sum(pushes.applied) + sum(pushes.dropped);
  result.dropped = sum(pushes.dropped) / all;
  result.computed_per_s = result.applied_per_s / (1.0 - result.dropped);
  result.worker_bytes = most_per_step(pushes.worker_bytes, steps);
  result.server_bytes = most_per_step(pushes.server_bytes, steps);
  if (!pushes.staleness.empty()) {
    result.staleness = {report::staleness_quantile(pushes, 0.5), report::staleness_quantile(pushes, 0.95),
                        pushes.most_stale};
  }
}

}  // namespace

void choose_way(config::TrainConfig& config, const std::string& way) {
  const std::vector<std::string> words = words_of(way);
  bool known = way == to_string(comm::UpdateKind::all_reduce);
  if (words[0] == to_string(comm::UpdateKind::local)) {
    config.update = comm::UpdateKind::local;
    known = choose_local(config.local, words);
  } else if (words[0] == to_string(comm::UpdateKind::server)) {
    config.update = comm::UpdateKind::server;
    known = choose_server(config, words);
  }
  if (known) return;
  throw Error(ErrorKind::usage, "a way is all-reduce, local:STEPS or local:STEPS:nesterov with 1 to ",
              optim::kMostLocalSteps,
              " steps, server:SERVERS, server:SERVERS:AGGREGATE, server:SERVERS:async or "
              "server:SERVERS:async:STALENESS, not '",
              way, "'");
}

void require_possible(const WaysBenchmarkConfig& config, const std::string& way, int ranks) {
  const config::TrainConfig train = steps_of(config, way, ranks).config;
  check(train);
  config::resolve_sizes(train, ranks, generated_images(train, ranks));
}

WayBenchmark benchmark_way(const WaysBenchmarkConfig& config, const std::string& way, double slow_factor,
                           const comm::World& world, const comm::PlatformFactory& make_platform) {
  const Steps steps = steps_of(config, way, world.size());
  double seconds = config.compute_s;  // of computing per replay; in the first replays not per local step
  BenchmarkRun run(steps.config, world);
  Replays replays(run, steps, &seconds, make_platform, slow_factor > 1.0 ? "" : config.record);
  const config::Sizes& sizes = run.plan.sizes;
  const comm::Update& update = *run.blocks.update;
  if (world.rank() + 1 == sizes.workers) seconds *= slow_factor;

  const Moment begin = replays.until(steps.before);
  seconds *= static_cast<double>(steps.of_replay);
  const Moment end = replays.until(steps.before + steps.measured);
  replays.until(steps.all());
  replays.finish();
  run.blocks.update->complete({}, {});

  WayBenchmark result;
  result.exchange = update.name();
  result.workers = sizes.workers;
  result.servers = world.size() - sizes.workers;
  result.images_per_step = sizes.global_batch;
  result.step_s =
      world.gather((end.seconds - begin.seconds) / static_cast<double>(end.step - begin.step)).front();
  result.applied_per_s = result.computed_per_s = static_cast<double>(result.images_per_step) / result.step_s;
  if (const auto pushes = update.push_counts()) {
    add_pushes(*pushes, steps.all(), result);
    return result;
  }
  const std::vector<double> bytes = world.gather(end.bytes - begin.bytes);
  if (world.node_size() < world.size()) {
    result.worker_bytes = std::ranges::max(bytes) / static_cast<double>(steps.measured);
  }
  return result;
}

}  // namespace cifar_mpi::bench
