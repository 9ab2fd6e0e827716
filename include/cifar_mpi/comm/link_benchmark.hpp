#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "cifar_mpi/comm/world.hpp"

namespace cifar_mpi::comm {

/// What messages between nodes cost, measured on all links at once: the first rank of each node sends to that of the next
/// node and receives from that of the one before, in rounds that follow each other.
struct LinkBenchmark {
  int nodes = 1;
  std::vector<std::pair<std::size_t, double>>
      message;                      ///< bytes, median seconds of a round of the slowest rank
  double bytes_per_s = 0.0;         ///< what the two longest messages differ by, each way
  double memory_bytes_per_s = 0.0;  ///< read and written by the slowest rank while all add arrays
};

/// About `seconds` for each length. Collective. Throws AgreedError{usage} on one node.
LinkBenchmark benchmark_links(double seconds, const World& world);

}  // namespace cifar_mpi::comm
