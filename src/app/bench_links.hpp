#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cifar_mpi/comm/world.hpp"

/// cifar_mpi_bench links.
namespace cifar_mpi::app {

struct LinksOptions {
  double seconds = 0.5;
  std::string json;
};

void add_links(CLI::App& app, LinksOptions& options);
int bench_links(const LinksOptions& options, comm::World& world);

}  // namespace cifar_mpi::app
