#include <fmt/core.h>

#include "app/bench_allreduce.hpp"
#include "app/device.hpp"
#include "app/values.hpp"
#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::app {
namespace {

constexpr const char* kRow = "{:<22} {:>5} {:>11} {:>4} {:>9} {:>10} {:>9} {:>10} {:>10} {:>8} {:>11}   {}";

std::string megabytes(const std::optional<double>& bytes) {
  return bytes ? fmt::format("{:.3f}", 1e-6 * *bytes) : "-";
}

/// A row of the table; only its last column may contain spaces.
std::string row(const std::string& way, double slow_factor, const bench::WayBenchmark& b) {
  const auto per_worker = b.servers == 0 ? std::to_string(b.workers) : concat(b.workers, '+', b.servers);
  const std::string staleness =
      b.staleness ? concat(b.staleness->half, ',', b.staleness->most_of_all, ',', b.staleness->most) : "-";
  return fmt::format(
      kRow, way, per_worker, b.images_per_step, slow_factor > 1.0 ? fmt::format("x{:g}", slow_factor) : "no",
      fmt::format("{:.2f}", 1e3 * b.step_s), fmt::format("{:.0f}", b.computed_per_s),
      fmt::format("{:.0f}", b.applied_per_s), megabytes(b.worker_bytes), megabytes(b.server_bytes),
      fmt::format("{:.1f}%", 100.0 * b.dropped), staleness, b.exchange);
}

}  // namespace

void add_ways(CLI::App& app, WaysOptions& options) {
  app.add_option("--ways", options.ways,
                 "Ways to measure: all-reduce, local:STEPS, local:STEPS:nesterov, server:SERVERS, "
                 "server:SERVERS:AGGREGATE, server:SERVERS:async, server:SERVERS:async:STALENESS")
      ->delimiter(',');
  app.add_option("--model", options.config.model, "Network")->check(model_name());
  app.add_option("--batch-size", options.config.batch_size, "Samples per worker")->check(number(1, 1 << 20));
  app.add_option("--compute-ms", options.compute_ms,
                 "Milliseconds per batch of a worker, simulated by sleeping")
      ->check(number(0.1, 1e6));
  app.add_option("--slow-factor", options.slow_factor,
                 "Slowdown of the last worker in a second run; 1: no second run")
      ->check(number(1.0, 1000.0));
  app.add_option("--seconds", options.config.seconds, "Seconds of computing per measurement")
      ->check(number(0.001, 3600.0));
  app.add_option("--all-reduce", options.config.all_reduce,
                 "Algorithm that sums gradients; for ways without servers")
      ->check(one_of(collective_names()));
  add_wire(app, options.wire);
  add_bucket_mib(app, options.config.bucket_mib);
  app.add_option("--record", options.config.record,
                 "Folder for the timeline of a single way without servers, for cifar_mpi_report --forecast")
      ->type_name("DIR");
}

void check(const WaysOptions& options) {
  for (const std::string& way : options.ways) {
    config::TrainConfig config;
    bench::choose_way(config, way);
    if (!options.config.record.empty() &&
        (options.ways.size() > 1 || config.update == comm::UpdateKind::server))
      throw Error(ErrorKind::usage, "--record needs a single way without servers, such as --ways all-reduce");
  }
}

int bench_ways(WaysOptions& options, comm::World& world) {
  const Log log(world.rank());
  bench::WaysBenchmarkConfig& config = options.config;
  config.wire = find_name<comm::Wire>(options.wire).value();
  config.compute_s = 1e-3 * options.compute_ms;
  world.together([&] {
    check_collective(config.all_reduce, false, "cifar_mpi_bench ways");
    if (!config.record.empty() && world.size() < 2)
      throw Error(ErrorKind::usage, "--record needs at least two ranks");
    for (const std::string& way : options.ways) bench::require_possible(config, way, world.size());
  });
  log.info(concat(config.model, " on ", counted(world.size(), "rank"), ", batch ", config.batch_size,
                  " of each worker; the ", options.compute_ms,
                  " ms of computing a batch are replaced by a sleep"));
  log.info(fmt::format(kRow, "way", "ranks", "images/step", "slow", "ms/step", "computed/s", "applied/s",
                       "MB worker", "MB server", "dropped", "staleness", "exchange"));
  for (const std::string& way : options.ways) {
    std::vector<double> factors{1.0};
    if (options.slow_factor > 1.0) factors.push_back(options.slow_factor);
    for (const double factor : factors)
      log.info(row(way, factor, bench::benchmark_way(config, way, factor, world, platform_for("cpu"))));
  }
  log.info(
      "slow: how many times longer the last worker computes; computed, applied: images; MB: sent and "
      "received per step of the busiest worker and server, of pushes and answers, or by a node's network "
      "devices where ranks sum; staleness: of 50 %, 95 % and all pushes");
  if (!config.record.empty()) {
    const bool recorded = world.rank() == 0 && exists(config.record + "/timeline.h5");
    log.info(
        recorded
            ? concat("recorded: cifar_mpi_report ", config.record, " --forecast 16,256 --link 20us,10gbit")
            : concat("note: nothing was recorded, because there were too few steps: raise --seconds"));
  }
  return 0;
}

}  // namespace cifar_mpi::app
