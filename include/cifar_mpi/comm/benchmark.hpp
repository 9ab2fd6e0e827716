#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/comm/collective.hpp"
#include "cifar_mpi/comm/world.hpp"

/// Compares the collectives (the time of an all-reduce, and whether its sums are exact), and measures the network.
namespace cifar_mpi::comm {

struct AllReduceBenchmarkConfig {
  std::vector<std::size_t> bytes;       ///< lengths of arrays, multiples of 4
  std::vector<std::string> algorithms;  ///< as in `collectives`; empty: all that this run's nodes allow
  double seconds = 1.0;                 ///< per length, about
  Wire wire = Wire::fp32;               ///< with bf16, "all" omits those that do not support it
};

/// One algorithm at one length. Times are those of the slowest rank in each run, in seconds.
struct AllReduceTiming {
  std::string algorithm;
  std::string resolved;  ///< the collective's own name
  std::size_t bytes = 0;
  int ranks = 1;
  int runs = 0;
  int sums_per_run = 1;  ///< times are per sum
  double least_s = 0.0;
  double median_s = 0.0;
  double p99_s = 0.0;
  double copy_bytes_per_s =
      0.0;  ///< median of copies of the same size, on all ranks at once, in the same rounds
  std::optional<double> mpi_allreduce_s;  ///< host: median of MPI's blocking call, in the same rounds
  std::size_t wrong = 0;                  ///< elements that are not the exact sum, over all ranks

  /// bytes / median, the speed that a caller sees.
  double algorithm_bandwidth() const;
  /// That times 2·(P-1)/P, the share of the array that any all-reduce must move per rank: comparable between
  /// numbers of ranks and with the speed of a link (as nccl-tests define it).
  double bus_bandwidth() const;
  /// The number of such copies in the median time of a sum.
  double copies() const;
};

/// Measures all algorithms at each length, in order, on arrays in host memory. In every round each algorithm runs once,
/// so that a disturbance affects all of them; before each run the array is rewritten, as by a backward pass, and all
/// ranks wait at a barrier. If one sum is short compared with the clock's resolution, a run consists of several sums.
/// At the end the sums of one more run are compared with the exact ones. `notes` are the collectives' own.
/// Collective; errors of `make_collective` and `allocate` are thrown on all ranks (AgreedError).
struct AllReduceBenchmark {
  std::vector<AllReduceTiming> timings;
  std::vector<std::string> notes;
  int nodes = 1;
};
AllReduceBenchmark benchmark_all_reduce(const AllReduceBenchmarkConfig& config, const World& world);

/// The same for arrays in the memory of the platform's backend, by its collectives; no algorithms means
/// `auto`. A run is one replay of a program of as many sums by the backend's default runner, so the times
/// include the start of a replay, divided among its sums. Copies use the backend in the same way. One rank
/// sums nothing; a note says so. Also throws what tasks and runners throw, on a single rank.
AllReduceBenchmark benchmark_all_reduce(const AllReduceBenchmarkConfig& config, const World& world,
                                        const Platform& platform);

/// The cost of messages between nodes, measured on all links at once: in each round the first rank of a node sends a
/// message to the first rank of the next node and receives one from the first rank of the node before. Two nodes send
/// in turn, and the slower direction counts.
struct LinkBenchmark {
  int nodes = 1;
  std::vector<std::pair<std::size_t, double>>
      message;                      ///< bytes, seconds of a message on the slowest rank (median)
  double bytes_per_s = 0.0;         ///< from the shortest and the longest message, in each direction
  double memory_bytes_per_s = 0.0;  ///< read plus written by the slowest rank while all add arrays
};

/// Takes about `seconds` for each length, and at least five rounds. Collective. Throws AgreedError{usage} on one node.
LinkBenchmark benchmark_links(double seconds, const World& world);

}  // namespace cifar_mpi::comm
