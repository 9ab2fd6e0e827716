#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cifar_mpi/comm/collective.hpp"
#include "cifar_mpi/comm/world.hpp"
#include "cifar_mpi/config/config.hpp"

/// The cost of each way to update, without the network's arithmetic.
namespace cifar_mpi::bench {

/// Sets the options of a way: "all-reduce", "local:STEPS", "local:STEPS:nesterov", "server:SERVERS",
/// "server:SERVERS:AGGREGATE", "server:SERVERS:async", "server:SERVERS:async:STALENESS". Throws Error{usage} that
/// names them.
void choose_way(config::TrainConfig& config, const std::string& way);

struct WaysBenchmarkConfig {
  std::string model = "tutorial";
  int batch_size = 128;             ///< of a worker
  double compute_s = 0.06;          ///< computing time per batch, which a worker sleeps instead
  double seconds = 4.0;             ///< of computing per worker and measurement
  std::string all_reduce = "auto";  ///< for all-reduce, as are the next two
  comm::Wire wire = comm::Wire::fp32;
  double bucket_mib = 1.0;
  std::string record;  ///< folder for timeline.h5, as a run has it, of a way without servers; empty: none
};

/// Throws Error{usage} if this way does not work with that many ranks.
void require_possible(const WaysBenchmarkConfig& config, const std::string& way, int ranks);

struct WayBenchmark {
  std::string exchange;  ///< as Update::name has it
  int workers = 0;
  int servers = 0;
  std::uint64_t images_per_step = 0;
  double step_s = 0.0;          ///< by the first worker's clock
  double applied_per_s = 0.0;   ///< images of the steps
  double computed_per_s = 0.0;  ///< and those of dropped pushes
  double dropped = 0.0;         ///< share of the pushes
  /// Bytes sent and received per step by the busiest worker and the busiest server: pushes and answers as the
  /// update counts them. For all-reduce they are counted by the network devices of a node, and are 0 on one
  /// node.
  std::optional<double> worker_bytes, server_bytes;
  struct Staleness {
    std::uint64_t half = 0, most_of_all = 0, most = 0;  ///< of 50 %, 95 % and all pushes
  };
  std::optional<Staleness> staleness;  ///< asynchronous ones
};

/// Takes steps of a model on generated images by one way, planned as in a run (plan_step), except that a
/// worker sleeps instead of computing, in as many tasks, between which messages move. So more ranks than
/// cores can be compared: pushes, sums, updates and messages are real. With a `slow_factor` above 1 the last
/// worker sleeps that much longer. The result is the same on all ranks; collective.
WayBenchmark benchmark_way(const WaysBenchmarkConfig& config, const std::string& way, double slow_factor,
                           const comm::World& world, const comm::PlatformFactory& make_platform);

}  // namespace cifar_mpi::bench
