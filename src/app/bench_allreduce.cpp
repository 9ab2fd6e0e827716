#include "app/bench_allreduce.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string_view>

#include "app/device.hpp"
#include "app/program.hpp"
#include "app/values.hpp"
#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/comm/collective.hpp"
#include "cifar_mpi/cuda/backend.hpp"

namespace cifar_mpi::app {
namespace {

using comm::AllReduceBenchmark;
using comm::AllReduceTiming;

AllReduceBenchmark measure_on_gpus(const AllReduceOptions& options, const comm::World& world) {
  comm::Platform platform;
  world.together([&] {
    platform = platform_for(options.device)({1, world.oversubscribed(), world.node_rank(), world.node_size(),
                                             options.share_gpus, options.nccl_algorithm, options.nccl_nvls});
    Log(world.rank())
        .info(concat(platform.backend->description(), "; NCCL's algorithm: ", options.nccl_algorithm,
                     options.nccl_nvls ? ", with NVLS" : ""));
  });
  AllReduceBenchmark benchmark = comm::benchmark_all_reduce(options.config, world, platform);
  if (options.share_gpus)
    benchmark.notes.emplace_back(
        "--share-gpus: ranks of one GPU take turns and send through sockets, so these times say little");
  return benchmark;
}

/// The line above the rows of a length.
std::string describe_length(const AllReduceTiming& t) {
  const std::string runs = fmt::format("{} bytes, {} runs of {}; ", t.bytes, t.runs, t.sums_per_run);
  const double copy_gb_s = 1e-9 * t.copy_bytes_per_s;
  if (!t.mpi_allreduce_s) return concat(runs, fmt::format("plain copy: {:.2f} GB/s on each rank", copy_gb_s));
  return concat(runs, fmt::format("blocking MPI_Allreduce: {:.2f} us; memcpy: {:.2f} GB/s on each rank",
                                  1e6 * *t.mpi_allreduce_s, copy_gb_s));
}

void print(const Log& log, const AllReduceBenchmark& benchmark, const comm::World& world, bool beside_mpi) {
  log.info(concat("all-reduce of fp32 over ", counted(world.size(), "rank"), " on ",
                  counted(benchmark.nodes, "node"), "; ", comm::World::library()));
  log.info(concat("times of the slowest rank; bus bandwidth = bytes / median * 2 (P-1) / P; ",
                  beside_mpi ? "of MPI: median / that of the blocking MPI_Allreduce"
                             : "copies: median / that of a plain copy",
                  "; GB = 1e9 bytes"));
  if (world.oversubscribed()) log.info("note: more ranks than cores, so these times say little");
  for (const std::string& note : benchmark.notes) log.warn(note);
  std::size_t bytes = SIZE_MAX;
  for (const AllReduceTiming& t : benchmark.timings) {
    if (t.bytes != bytes) {
      log.info("");
      log.info(describe_length(t));
      log.info(concat("     min us   median us      p99 us  alg GB/s  bus GB/s  ",
                      beside_mpi ? "of MPI" : "copies", "   wrong  algorithm"));
    }
    bytes = t.bytes;
    log.info(
        fmt::format("{:11.2f} {:11.2f} {:11.2f} {:9.2f} {:9.2f} {:7.2f} {:7}  {}", 1e6 * t.least_s,
                    1e6 * t.median_s, 1e6 * t.p99_s, 1e-9 * t.algorithm_bandwidth(), 1e-9 * t.bus_bandwidth(),
                    beside_mpi ? t.median_s / t.mpi_allreduce_s.value() : t.copies(), t.wrong, t.resolved));
  }
}

constexpr std::string_view kSumsBegin = "{\"device\": ";

/// Properties that only the communication module knows for host arrays.
void check_on_host(const AllReduceOptions& options) {
  const char* const of_gpus = options.share_gpus                 ? "--share-gpus"
                              : options.nccl_nvls                ? "--nccl-nvls"
                              : options.nccl_algorithm != "auto" ? "--nccl-algo"
                                                                 : nullptr;
  if (of_gpus != nullptr)
    throw Error(ErrorKind::usage, of_gpus,
                " is for GPUs, but the arrays are in host memory; add --device cuda");
  for (const std::string& name : options.config.algorithms) {
    if (comm::find_collective(comm::collectives(), name) == nullptr)
      throw Error(ErrorKind::usage, "--algorithms ", name, " sums between GPUs; add --device cuda");
  }
}

/// The same for collectives on GPUs; without names, all that exist.
void check_on_gpus(AllReduceOptions& options) {
  const auto infos = cuda::collectives();
  std::string choices = "auto";
  for (const comm::CollectiveInfo& info : infos) choices += concat(", ", info.name);
  for (const std::string& name : options.config.algorithms) {
    if (name != "auto" && comm::find_collective(infos, name) == nullptr)
      throw Error(ErrorKind::usage, "--algorithms ", name,
                  " is not measured in GPU memory; with --device cuda choose of: ", choices);
  }
  if (options.config.wire != comm::Wire::fp32)
    throw Error(ErrorKind::usage, "--wire ", options.wire,
                " is for messages between hosts; with --device cuda sums travel as fp32");
  if (options.nccl_nvls && options.nccl_algorithm != "auto")
    throw Error(ErrorKind::usage, "--nccl-nvls cannot be combined with --nccl-algo ", options.nccl_algorithm,
                ", which is another algorithm; leave one of them out");
  // NCCL uses one algorithm for the whole process; the fixed-tree sum gathers, which NCCL's tree cannot.
  const bool gathers = options.nccl_algorithm == "auto";
  auto& names = options.config.algorithms;
  const bool all = names.empty();
  for (const comm::CollectiveInfo& info : infos) {
    const bool possible = gathers || !info.fixed_tree;
    if (all && possible) names.emplace_back(info.name);
    if (!possible && std::ranges::find(names, info.name) != names.end())
      throw Error(ErrorKind::usage, "--algorithms ", info.name,
                  " gathers, and --nccl-algo is about sums; leave one out");
  }
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
    throw Error(
        ErrorKind::usage, "--sizes: '", text,
        "' is not a length of fp32 arrays; give bytes, a multiple of 4 up to 4G, such as 4K, 1M or 4273192");
  }
  return value << shift;
}

std::string to_json(const AllReduceTiming& t, int nodes, const std::string& device) {
  const std::string mpi =
      t.mpi_allreduce_s ? fmt::format("\"mpi_allreduce_us\": {:.3f}, ", 1e6 * *t.mpi_allreduce_s) : "";
  return fmt::format(
      "{}\"{}\", \"algorithm\": \"{}\", \"resolved\": \"{}\", \"bytes\": {}, \"ranks\": {}, \"nodes\": {}, "
      "\"runs\": {}, \"sums_per_run\": {}, \"min_us\": {:.3f}, \"median_us\": {:.3f}, \"p99_us\": {:.3f}, "
      "\"algbw_gb_s\": {:.6g}, \"busbw_gb_s\": {:.6g}, \"memcpy_gb_s\": {:.6g}, {}\"wrong\": {}}}",
      kSumsBegin, device, t.algorithm, t.resolved, t.bytes, t.ranks, nodes, t.runs, t.sums_per_run,
      1e6 * t.least_s, 1e6 * t.median_s, 1e6 * t.p99_s, 1e-9 * t.algorithm_bandwidth(),
      1e-9 * t.bus_bandwidth(), 1e-9 * t.copy_bytes_per_s, mpi, t.wrong);
}

void add_all_reduce(CLI::App& app, AllReduceOptions& options) {
  app.add_option("--sizes", options.sizes, "Bytes per array; K, M and G are powers of 1024")->delimiter(',');
  app.add_option("--algorithms", options.config.algorithms,
                 "Algorithms to measure [all that these nodes or GPUs allow]")
      ->delimiter(',')
      ->check(one_of(collective_names()))
      ->default_str("");
  add_wire(app, options.wire);
  app.add_option("--seconds", options.config.seconds, "Seconds per size, about")
      ->check(number(0.001, 3600.0));
  app.add_option("--device", options.device, "Memory that holds the arrays")->check(one_of({"cpu", "cuda"}));
  app.add_option("--nccl-algo", options.nccl_algorithm, "Algorithm of NCCL")
      ->check(one_of({"auto", "ring", "tree"}));
  app.add_flag("--nccl-nvls", options.nccl_nvls, "Let NCCL use NVLS");
  app.add_flag("--share-gpus", options.share_gpus, "Let several ranks use one GPU: slow, for tests");
  app.add_option("--json", options.json, "File to write as well: one object per size and algorithm");
}

void check(AllReduceOptions& options) {
  for (const std::string& size : options.sizes) options.config.bytes.push_back(parse_bytes(size));
  options.config.wire = find_name<comm::Wire>(options.wire).value();
  if (takes_cuda(options.device)) {
    check_on_gpus(options);
  } else {
    check_on_host(options);
  }
}

int bench_all_reduce(const AllReduceOptions& options, comm::World& world) {
  prepare_json(world, options.json, kSumsBegin, "a file of cifar_mpi_bench allreduce");
  const bool on_gpus = takes_cuda(options.device);
  const AllReduceBenchmark benchmark =
      on_gpus ? measure_on_gpus(options, world) : comm::benchmark_all_reduce(options.config, world);
  print(Log(world.rank()), benchmark, world, !on_gpus);
  std::string json;
  for (const AllReduceTiming& t : benchmark.timings)
    json += to_json(t, benchmark.nodes, options.device) + "\n";
  write_json(world, options.json, json);
  const bool exact =
      std::ranges::all_of(benchmark.timings, [](const AllReduceTiming& t) { return t.wrong == 0; });
  return exact ? 0 : exit_code(ErrorKind::internal);
}

}  // namespace cifar_mpi::app
