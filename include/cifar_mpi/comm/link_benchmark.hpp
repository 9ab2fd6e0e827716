#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "cifar_mpi/comm/world.hpp"

namespace cifar_mpi::comm {

/// The cost of messages between nodes, measured on all links at once: in each round the first rank of a node sends a
/// message to the first rank of the next node and receives one from the first rank of the node before.
struct LinkBenchmark {
  int nodes = 1;
  std::vector<std::pair<std::size_t, double>>
      message;                      ///< bytes, seconds of a round on the slowest rank (median)
  double bytes_per_s = 0.0;         ///< from the shortest and the longest message, in each direction
  double memory_bytes_per_s = 0.0;  ///< read plus written by the slowest rank while all add arrays
};

/// Takes about `seconds` for each length, and at least five rounds. Collective. Throws AgreedError{usage} on one node.
LinkBenchmark benchmark_links(double seconds, const World& world);

}  // namespace cifar_mpi::comm
