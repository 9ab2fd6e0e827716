#include "cifar_mpi/bench/step_benchmark.hpp"

#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <span>
#include <utility>

#include "bench/benchmark_parts.hpp"
#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/hash.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/step/no_exchange.hpp"

namespace cifar_mpi::bench {
namespace {

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  return {values.front(), values[values.size() / 2], values.back()};
}

double least(const std::vector<double>& values) { return std::ranges::min(values); }
double most(const std::vector<double>& values) { return std::ranges::max(values); }

config::TrainConfig train_config(const StepBenchmarkConfig& config) {
  config::TrainConfig train = benchmark_config(config.model);
  train.batch_size = config.batch_size;
  train.threads = config.threads;
  train.precision = config.precision;
  train.conv = config.conv;
  if (config.optimizer) train.optimizer.kind = *config.optimizer;
  train.share_matrices = config.share_matrices;
  train.all_reduce = config.all_reduce;
  train.wire = config.wire;
  train.bucket_mib = config.bucket_mib;
  train.overlap = comm::Overlap::on;  // `blocking` measures its benefit
  train.share_gpus = config.share_gpus;
  return train;
}

/// The kind of the last steps of a run.
step::StepKind measured_kind(const step::Plan& plan) { return step::step_kind(plan, ~std::uint64_t{0}); }

/// The step in several ways, on the same memory.
struct Variants {
  std::unique_ptr<comm::Update> none;
  std::unique_ptr<engine::Runner> overlapped, blocking, alone;
  std::unique_ptr<engine::Runner> in_a_row;  ///< without a side lane, if the first has one
  std::unique_ptr<engine::Runner> told;      ///< task by task, if the first cannot time them
};

void plan_variants(BenchmarkRun& run, Variants& variants) {
  step::allocate_blocks(run.plan, run.device, run.blocks);
  const step::StepContext context = run.context();
  const step::StepKind kind = measured_kind(run.plan);
  variants.overlapped = step::plan_step(context, {}, kind);
  if (variants.overlapped->program().lanes() > engine::kFirstSide) {
    variants.in_a_row = step::plan_step(context, {.branches = false}, kind);
  }
  if (variants.overlapped->task_seconds().empty()) {
    const engine::RunnerKind chosen = std::exchange(run.plan.config.runner, engine::RunnerKind::serial);
    variants.told = step::plan_step(context, {}, kind);
    run.plan.config.runner = chosen;
  }
  if (run.plan.world.size() > 1) {
    variants.blocking = step::plan_step(context, {.exchange = false}, kind);
    variants.none = std::make_unique<comm::AllReduceUpdate>(
        std::make_unique<step::NoExchange>(*run.device.backend,
                                           std::as_writable_bytes(run.blocks.update->block().all())),
        run.device.layout, comm::AllReduceSettings{run.plan.config.bucket_mib});
    variants.none->allocate(step::control_layout(run.plan, run.device).floats());
    variants.alone = step::plan_step({run.plan, run.device, run.blocks, *variants.none}, {}, kind);
  }
  run.write_initial_state();
}

/// A diverging step skips its updates, so its times would mean nothing, and it does not count.
void require_applied(const BenchmarkRun& run, const Variants& variants) {
  std::uint64_t done = 0, counted = 0;
  for (const auto* const runner :
       {&variants.overlapped, &variants.blocking, &variants.alone, &variants.in_a_row, &variants.told}) {
    if (*runner) done += (*runner)->finished();
  }
  run.device.backend->copy(&counted, run.blocks.step_counter.data(), sizeof counted);
  if (counted == done) return;
  throw Error(ErrorKind::diverged, "the loss of the measured steps is not finite from step ", counted + 1,
              " of ", done, " on");
}

/// Of all threads of this process so far.
double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// The time since its construction, and how much of it the processor gave to this process.
class Stopwatch {
 public:
  double seconds() const { return steady_seconds() - begin_; }
  double processor_share(int threads) const {
    return (processor_seconds() - processor_begin_) / (threads * seconds());
  }

 private:
  double begin_ = steady_seconds();
  double processor_begin_ = processor_seconds();
};

/// Seconds per step of the slowest rank, and the lowest processor share of a rank.
struct StepTimes {
  double step_s = 0.0;
  std::vector<double> slice_s, slice_share;  ///< of StepBenchmark
};

/// Runs `steps` steps, `together` of them in each launch, and waits for the device after each slice.
StepTimes time_slices(const comm::World& world, engine::Runner& step, int steps, int together, int threads) {
  constexpr int kSlices = 50;
  const int launches = (steps + together - 1) / together, per_slice = (launches + kSlices - 1) / kSlices;
  std::vector<double> seconds, shares;
  world.barrier();
  const double begin = steady_seconds();
  for (int done = 0; done < launches; done += per_slice) {
    const int here = std::min(per_slice, launches - done);
    const Stopwatch watch;
    for (int i = 0; i < here; ++i) step.replay(together);
    step.finish();
    shares.push_back(watch.processor_share(threads));
    seconds.push_back(watch.seconds() / (here * together));
  }
  const double per_step_s = (steady_seconds() - begin) / steps;
  StepTimes times;
  for (const double slice : seconds) times.slice_s.push_back(most(world.gather(slice)));
  for (const double share : shares) times.slice_share.push_back(least(world.gather(share)));
  times.step_s = most(world.gather(per_step_s));
  return times;
}

double time_steps(const comm::World& world, engine::Runner& step, int steps, int together = 1) {
  return time_slices(world, step, steps, together, 1).step_s;
}

/// Of the next two steps (StepBenchmark::bits): the second depends on the weights that the first changed.
std::uint64_t hash_of_steps(const BenchmarkRun& run, engine::Runner& step) {
  const std::span<const float> grads = run.blocks.update->block().grads();
  std::vector<std::byte> bytes(grads.size_bytes());
  std::uint64_t hash = 0;
  for (int i = 0; i < 2; ++i) {
    step.replay();
    step.finish();
    run.device.backend->copy(bytes.data(), grads.data(), bytes.size());
    hash = hash_pair(hash, hash_bytes(bytes));
  }
  return hash;
}

/// Warms up pages, caches and clocks; a runner of graphs captures the rounds' program only after its first
/// launch.
void warm_up(const comm::World& world, engine::Runner& step, int together) {
  time_steps(world, step, 3);
  time_steps(world, step, 2 * together, together);
}

double resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return 1024.0 * static_cast<double>(usage.ru_maxrss);
}

/// Its tasks except the all-reduces, which have other limits.
std::vector<StepBenchmark::Row> rows_of(const engine::StepProgram& program) {
  std::vector<StepBenchmark::Row> rows(program.tasks().size());
  for (const engine::Instruction& line : program.instructions()) {
    if (line.op != engine::Op::run) continue;
    const auto t = static_cast<std::size_t>(line.target);
    rows[t].task = program.tasks()[t].name;
    if (program.tasks()[t].kind == engine::TaskKind::collective) continue;
    rows[t].flops = program.tasks()[t].cost.flops;
    rows[t].bytes = engine::bytes_moved(program.tasks()[t]);
  }
  return rows;
}

double floor_s(const std::vector<StepBenchmark::Row>& rows, const engine::RooflineLimits& limits) {
  double sum = 0.0;
  for (const auto& row : rows) sum += engine::floor_seconds(row.flops, row.bytes, limits);
  return sum;
}

/// Mean seconds of each task over `steps` replays since `before` was read.
std::vector<StepBenchmark::Row> timed_rows(const engine::Runner& runner, const std::vector<double>& before,
                                           double steps) {
  std::vector<StepBenchmark::Row> rows = rows_of(runner.program());
  const std::vector<double> after = runner.task_seconds();
  for (std::size_t t = 0; t < rows.size(); ++t) rows[t].seconds = (after[t] - before[t]) / steps;
  return rows;
}

/// Each round measures the ceiling, then every variant of the step, so that all run under the same
/// conditions.
void measure(const StepBenchmarkConfig& config, BenchmarkRun& run, Variants& variants,
             const MeasureLimits& measure_limits, StepBenchmark& result) {
  const comm::World& world = run.plan.world;
  engine::Runner& step = *variants.overlapped;
  const int together = config.graph_steps;
  for (engine::Runner* const runner :
       {&step, variants.in_a_row.get(), variants.blocking.get(), variants.alone.get()}) {
    if (runner != nullptr) warm_up(world, *runner, together);
  }
  // of the faster of two trials: a moment of other work in the only one would shorten every round
  const double step_s = std::min(time_steps(world, step, 2 * together, together),
                                 time_steps(world, step, 2 * together, together));
  const int launches = std::max(1, static_cast<int>(std::lround(config.round_s / step_s / together)));
  const int steps = launches * together;
  const double limits_s = std::clamp(config.round_s / 4, 0.01, 0.05);  // of each of the two limits
  const std::vector<double> before = step.task_seconds();
  const std::vector<StepBenchmark::Row> rows = rows_of(step.program());
  std::vector<double> step_times, processor, images_per_s, products, copies, shares, in_a_row_s, alone_s,
      blocking_s, exposed_s;
  for (int round = 0; round < config.rounds; ++round) {
    world.barrier();
    const engine::RooflineLimits mine =
        measure_limits(run.plan.config.precision, run.plan.config.threads, limits_s);
    products.push_back(least(world.gather(mine.flops)));
    copies.push_back(least(world.gather(mine.bytes)));
    const Stopwatch watch;
    const StepTimes times = time_slices(world, step, steps, together, run.plan.config.threads);
    processor.push_back(least(world.gather(watch.processor_share(run.plan.config.threads))));
    step_times.push_back(times.step_s);
    result.slice_s.insert(result.slice_s.end(), times.slice_s.begin(), times.slice_s.end());
    result.slice_share.insert(result.slice_share.end(), times.slice_share.begin(), times.slice_share.end());
    images_per_s.push_back(static_cast<double>(run.plan.sizes.global_batch) / step_times.back());
    shares.push_back(floor_s(rows, {products.back(), copies.back()}) / step_times.back());
    if (variants.in_a_row) in_a_row_s.push_back(time_steps(world, *variants.in_a_row, steps, together));
    if (world.size() == 1) continue;
    blocking_s.push_back(time_steps(world, *variants.blocking, steps, together));
    alone_s.push_back(time_steps(world, *variants.alone, steps, together));
    exposed_s.push_back(step_times.back() - alone_s.back());
  }
  result.step_s = spread_of(step_times);
  result.processor_share = spread_of(processor);
  result.images_per_s = spread_of(images_per_s);
  result.peak_flops = spread_of(products);
  result.copy_rate = spread_of(copies);
  result.share = spread_of(shares);
  result.in_a_row_s = spread_of(in_a_row_s);
  result.alone_s = spread_of(alone_s);
  result.blocking_s = spread_of(blocking_s);
  result.exposed_s = spread_of(exposed_s);
  if (!variants.told) {
    result.tasks = timed_rows(step, before, static_cast<double>(steps) * config.rounds);
    return;
  }
  constexpr int kEnough = 50;
  const int told = std::min(kEnough, steps * config.rounds);
  time_steps(world, *variants.told, 3);
  const std::vector<double> start = variants.told->task_seconds();
  time_steps(world, *variants.told, told);
  result.tasks = timed_rows(*variants.told, start, told);
}

}  // namespace

StepBenchmark benchmark_step(const StepBenchmarkConfig& config, const comm::World& world,
                             const comm::PlatformFactory& make_platform,
                             const MeasureLimits& measure_limits) {
  BenchmarkRun run(train_config(config), world);
  step::resolve_threads(run.plan);
  world.together([&] { run.build(make_platform); });
  step::open_update(run.plan, run.device, run.blocks);
  Variants variants;
  world.together([&] { plan_variants(run, variants); });

  StepBenchmark result;
  result.model = run.plan.config.model;
  result.backend = run.device.backend->description();
  result.precision = to_string(run.plan.config.precision);
  result.optimizer = to_string(run.plan.config.optimizer.kind);
  result.shares_matrices = world.size() > 1 && !run.blocks.hidden.owners.empty();
  result.all_reduce = run.blocks.update->name();
  result.ranks = world.size();
  result.batch_size = run.plan.sizes.batch;
  result.kernels = run.device.tower->plan_text();
  const model::Flops flops = step::training_flops(run.plan, measured_kind(run.plan));
  result.in_image_flops = flops.in_image;
  result.nominal_flops = flops.nominal;
  result.bits = hash_of_steps(run, *variants.overlapped);
  measure(config, run, variants, measure_limits, result);
  std::erase_if(
      result.tasks, [&](const StepBenchmark::Row& row) {  // idle: of a matrix that another rank computes
        const auto task =
            std::ranges::find(variants.overlapped->program().tasks(), row.task, &engine::Task::name);
        return task->reads.empty() && task->writes.empty();
      });
  world.together([&] { require_applied(run, variants); });
  const engine::RooflineLimits limits{result.peak_flops.median, result.copy_rate.median};
  for (auto& row : result.tasks) row.floor_s = engine::floor_seconds(row.flops, row.bytes, limits);
  result.floor_s = floor_s(result.tasks, limits);
  result.resident_bytes = most(world.gather(resident_bytes()));
  return result;
}

std::string exposed_text(const StepBenchmark& result, const char* unit, double per_second) {
  const double exposed = result.exposed_s.median;
  const double blocking = result.blocking_s.median - result.alone_s.median;
  const std::string beginning = fmt::format("exposed communication: {:.3f} {}, ", per_second * exposed, unit);
  if (exposed < 0.0 || blocking <= 0.0)
    return fmt::format("{}but the blocking all-reduce {:.3f} {} ({}): other work disturbs the rounds",
                       beginning, per_second * blocking, unit, result.all_reduce);
  const std::string beside =
      fmt::format("the blocking all-reduce ({:.3f} {}; {})", per_second * blocking, unit, result.all_reduce);
  if (exposed <= blocking)
    return fmt::format("{}{:.0f} % of {}", beginning, 100.0 * exposed / blocking, beside);
  return concat(beginning, "more than ", beside,
                ": overlap gains nothing here, or other work disturbs the rounds");
}

}  // namespace cifar_mpi::bench
