#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cifar_mpi/bench/ways_benchmark.hpp"
#include "cifar_mpi/comm/world.hpp"

/// `cifar_mpi_bench ways`: its options and its table.
namespace cifar_mpi::app {

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
