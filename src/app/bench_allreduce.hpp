#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cifar_mpi/bench/ways_benchmark.hpp"
#include "cifar_mpi/comm/benchmark.hpp"
#include "cifar_mpi/comm/world.hpp"

/// `cifar_mpi_bench allreduce`: its options and its table.
namespace cifar_mpi::app {

struct AllReduceOptions {
  std::vector<std::string> sizes{"4K", "64K", "1M", "4273192", "64M"};
  comm::AllReduceBenchmarkConfig config;
  std::string wire = "fp32";
  std::string device = "cpu";
  bool share_gpus = false;
  std::string nccl_algorithm = "auto";
  bool nccl_nvls = false;
  std::string json;  ///< path; empty: no file
};

void add_all_reduce(CLI::App& app, AllReduceOptions& options);

/// Fills `config`. Throws Error{usage} for an invalid length or a collective that the device lacks.
void check(AllReduceOptions& options);

/// Prints the table and writes the file. Returns the exit code: 1 when a sum was wrong.
int bench_all_reduce(const AllReduceOptions& options, comm::World& world);

/// Bytes from digits and an optional K, M or G (times 1024). Throws Error{usage}, also unless it is a
/// multiple of 4.
std::size_t parse_bytes(const std::string& text);

/// One line of JSON: device, algorithm, resolved, bytes, ranks, nodes, runs, sums_per_run, min_us, median_us,
/// p99_us, algbw_gb_s, busbw_gb_s, memcpy_gb_s (1e9 bytes per second; on cuda of a copy within the GPU),
/// mpi_allreduce_us (the blocking call; not on cuda), wrong.
std::string to_json(const comm::AllReduceTiming& timing, int nodes, const std::string& device);

// cifar_mpi_bench links.

struct LinksOptions {
  double seconds = 0.5;
  std::string json;
};

void add_links(CLI::App& app, LinksOptions& options);
int bench_links(const LinksOptions& options, comm::World& world);

// cifar_mpi_bench ways: its options and its table.

struct WaysOptions {
  bench::WaysBenchmarkConfig config;
  std::vector<std::string> ways{"all-reduce", "server:1", "server:1:async", "local:16"};
  double compute_ms = 60.0;
  double slow_factor = 3.0;
  std::string wire = "fp32";
};

void add_ways(CLI::App& app, WaysOptions& options);

/// Throws Error{usage} for an unknown way.
void check(const WaysOptions& options);

int bench_ways(WaysOptions& options, comm::World& world);

}  // namespace cifar_mpi::app
