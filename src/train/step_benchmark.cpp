#include "cifar_mpi/train/step_benchmark.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>

#include "cifar_mpi/base/clock.hpp"
#include "train/state.hpp"

namespace cifar_mpi::train {
namespace {

Spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values.front(), values[values.size() / 2], values.back()};
}

double least(const std::vector<double>& values) { return *std::min_element(values.begin(), values.end()); }
double most(const std::vector<double>& values) { return *std::max_element(values.begin(), values.end()); }

TrainConfig train_config(const StepBenchmarkConfig& config) {
  TrainConfig train;
  train.data = "generated images";
  train.model = config.model;
  train.batch_size = config.batch_size;
  train.threads = config.threads;
  train.precision = config.precision;
  train.runner = config.runner;
  train.all_reduce = config.all_reduce;
  // A rate at which nothing diverges however long the measurement takes; the work is the same for any rate.
  train.lr = 1e-6;
  return train;
}

/// Enough images that a step does not find its own in the cache, as in a run.
data::Samples generate(SessionState& state) {
  data::Samples train, test;
  const Extent image{32, 32, 3};
  const auto count = static_cast<std::uint64_t>(std::max(4096, 8 * state.sizes.batch));
  data::make_synthetic(image, 10, count, state.config.seed, train, test);
  return train;
}

void build(SessionState& state, const BackendFactory& make_backend) {
  state.info.image = {32, 32, 3};
  state.info.label_names = data::cifar10_label_names();
  state.info.test_count = 1;
  state.info.train_count = static_cast<std::uint64_t>(state.world.size()) *
                           static_cast<std::uint64_t>(std::max(4096, 8 * state.config.batch_size));
  check(state.config);
  state.sizes = resolve_sizes(state.config, state.world.size(), state.info);
  state.network = make_network(state.config.model, state.info, state.config.augment, state.config.data);
  plan_device(state, make_backend);
  state.samples = ResidentData(*state.backend, generate(state));
}

void start(SessionState& state) {
  build_step(state);
  const std::vector<NamedTensor> initial = initial_tensors(state.network.params, state.config.seed);
  import_block(*state.backend, *state.tower, initial, state.params);
  import_block(*state.backend, *state.tower, initial, state.ema);
}

/// Seconds per step of this rank over `steps` steps.
double time_steps(SessionState& state, int steps) {
  state.world.barrier();
  const double begin = steady_seconds();
  for (int i = 0; i < steps; ++i) state.step->replay();
  state.step->finish();
  return (steady_seconds() - begin) / steps;
}

double resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return 1024.0 * static_cast<double>(usage.ru_maxrss);
}

}  // namespace

StepBenchmark benchmark_step(const StepBenchmarkConfig& config, const comm::World& world,
                             const BackendFactory& make_backend,
                             const std::function<double(int, double)>& measure_peak) {
  static const std::atomic<int> kNoStop{0};
  SessionState state(train_config(config), world, Log(world.rank()), kNoStop);
  resolve_threads(state);
  world.together([&] { build(state, make_backend); });
  open_collective(state);
  world.together([&] { start(state); });

  time_steps(state, 3);  // pages, caches and clocks warm up
  const double one = most(world.gather(time_steps(state, 2)));
  const int steps = std::max(1, static_cast<int>(std::lround(config.round_s / one)));
  const std::vector<double> before = state.step->task_seconds();

  StepBenchmark result;
  result.in_image_flops = model::training_flops(state.network.net).in_image;
  std::vector<double> step_s, images_per_s, peaks, shares;
  for (int round = 0; round < config.rounds; ++round) {
    world.barrier();
    const double peak = least(world.gather(measure_peak(state.config.threads, 0.05)));
    const double seconds = most(world.gather(time_steps(state, steps)));
    peaks.push_back(peak);
    step_s.push_back(seconds);
    images_per_s.push_back(static_cast<double>(state.sizes.global_batch) / seconds);
    shares.push_back(result.in_image_flops * state.sizes.batch / seconds / peak);
  }
  result.backend = state.backend->description();
  result.precision = engine::to_string(state.config.precision);
  result.ranks = world.size();
  result.batch_size = state.sizes.batch;
  result.step_s = spread_of(step_s);
  result.images_per_s = spread_of(images_per_s);
  result.peak_flops = spread_of(peaks);
  result.share = spread_of(shares);
  const std::vector<double> after = state.step->task_seconds();
  const std::vector<engine::Task>& tasks = state.step->program().tasks();
  for (std::size_t t = 0; t < after.size(); ++t) {
    result.tasks.push_back(
        {tasks[t].name, (after[t] - before[t]) / (static_cast<double>(steps) * config.rounds)});
  }
  result.resident_bytes = most(world.gather(resident_bytes()));
  return result;
}

}  // namespace cifar_mpi::train
