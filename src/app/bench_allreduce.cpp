#include "app/bench_allreduce.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <span>

#include "app/program.hpp"
#include "app/values.hpp"
#include "cifar_mpi/base/atomic_file.hpp"
#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/comm/collective.hpp"

namespace cifar_mpi::app {
namespace {

using comm::AllReduceBenchmark;
using comm::AllReduceTiming;

void print(const Log& log, const AllReduceBenchmark& benchmark, const comm::World& world) {
  log.info(concat("all-reduce of fp32 over ", world.size(), world.size() == 1 ? " rank" : " ranks", " on ",
                  benchmark.nodes, benchmark.nodes == 1 ? " node; " : " nodes; ", comm::World::library()));
  log.info(
      "times of the slowest rank; bus bandwidth = bytes / median * 2 (P-1) / P; of MPI: median / that of the "
      "blocking MPI_Allreduce; GB = 1e9 bytes");
  if (world.oversubscribed()) log.info("note: more ranks than cores, so these times say little");
  for (const std::string& note : benchmark.notes) log.warn(note);
  std::size_t bytes = SIZE_MAX;
  for (const AllReduceTiming& t : benchmark.timings) {
    if (t.bytes != bytes) {
      log.info("");
      log.info(
          format("%zu bytes, %d runs of %d; blocking MPI_Allreduce: %.2f us; memcpy: %.2f GB/s on each rank",
                 t.bytes, t.runs, t.sums_per_run, 1e6 * t.mpi_allreduce_s, 1e-9 * t.copy_bytes_per_s));
      log.info("     min us   median us      p99 us  alg GB/s  bus GB/s  of MPI   wrong  algorithm");
    }
    bytes = t.bytes;
    log.info(format("%11.2f %11.2f %11.2f %9.2f %9.2f %7.2f %7zu  %s", 1e6 * t.least_s, 1e6 * t.median_s,
                    1e6 * t.p99_s, 1e-9 * t.algorithm_bandwidth(), 1e-9 * t.bus_bandwidth(),
                    t.median_s / t.mpi_allreduce_s, t.wrong, t.resolved.c_str()));
  }
}

void write_json(const std::string& path, const AllReduceBenchmark& benchmark) {
  std::string text;
  for (const AllReduceTiming& t : benchmark.timings) text += to_json(t, benchmark.nodes) + "\n";
  write_atomically(path, std::as_bytes(std::span(text)));
}

}  // namespace

std::size_t parse_bytes(const std::string& text) {
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  auto [rest, error] = std::from_chars(text.data(), end, value);
  unsigned shift = 0;
  if (error == std::errc{} && rest != end) {
    shift = *rest == 'K' || *rest == 'k'   ? 10
            : *rest == 'M' || *rest == 'm' ? 20
            : *rest == 'G' || *rest == 'g' ? 30
                                           : 0;
    if (shift > 0) ++rest;
  }
  constexpr std::uint64_t kMost = std::uint64_t{4} << 30;
  if (error != std::errc{} || rest != end || value == 0 || value > (kMost >> shift) ||
      (value << shift) % sizeof(float) != 0) {
    throw Error(ErrorKind::usage,
                concat("--sizes: '", text,
                       "' is no length of fp32 arrays; give bytes, a multiple of 4 up to 4G, such as "
                       "4K, 1M or 4273192"));
  }
  return value << shift;
}

std::string to_json(const AllReduceTiming& t, int nodes) {
  return format(
      "{\"algorithm\": \"%s\", \"resolved\": \"%s\", \"bytes\": %zu, \"ranks\": %d, \"nodes\": %d, "
      "\"runs\": %d, \"sums_per_run\": %d, \"min_us\": %.3f, \"median_us\": %.3f, \"p99_us\": %.3f, "
      "\"algbw_gb_s\": %.6g, "
      "\"busbw_gb_s\": %.6g, \"memcpy_gb_s\": %.6g, \"mpi_allreduce_us\": %.3f, \"wrong\": %zu}",
      t.algorithm.c_str(), t.resolved.c_str(), t.bytes, t.ranks, nodes, t.runs, t.sums_per_run,
      1e6 * t.least_s, 1e6 * t.median_s, 1e6 * t.p99_s, 1e-9 * t.algorithm_bandwidth(),
      1e-9 * t.bus_bandwidth(), 1e-9 * t.copy_bytes_per_s, 1e6 * t.mpi_allreduce_s, t.wrong);
}

void add_all_reduce(CLI::App& app, AllReduceOptions& options) {
  std::vector<std::string> names;
  for (const auto& info : comm::collectives()) names.emplace_back(info.name);
  app.add_option("--sizes", options.sizes, "Bytes per array; K, M and G are powers of 1024")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--algorithms", options.config.algorithms, "Default: all that this run's nodes allow")
      ->delimiter(',')
      ->check(CLI::IsMember(names));
  app.add_option("--wire", options.wire, "What messages carry; bf16 halves them")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  app.add_option("--seconds", options.config.seconds, "Per size, about")
      ->check(number(0.001, 3600.0))
      ->capture_default_str();
  app.add_option("--json", options.json, "Also write this file: one object per line, size and algorithm")
      ->check(not_empty());
}

void check(AllReduceOptions& options) {
  for (const std::string& size : options.sizes) options.config.bytes.push_back(parse_bytes(size));
  options.config.wire = options.wire == "bf16" ? comm::Wire::bf16 : comm::Wire::fp32;
}

int bench_all_reduce(const AllReduceOptions& options, comm::World& world) {
  world.together([&] {  // found before anything is measured
    if (world.rank() == 0 && !options.json.empty()) require_writable(options.json);
  });
  const AllReduceBenchmark benchmark = comm::benchmark_all_reduce(options.config, world);
  print(Log(world.rank()), benchmark, world);
  world.together([&] {
    if (world.rank() == 0 && !options.json.empty()) write_json(options.json, benchmark);
  });
  const bool exact = std::all_of(benchmark.timings.begin(), benchmark.timings.end(),
                                 [](const AllReduceTiming& t) { return t.wrong == 0; });
  return exact ? 0 : exit_code(ErrorKind::internal);
}

}  // namespace cifar_mpi::app
