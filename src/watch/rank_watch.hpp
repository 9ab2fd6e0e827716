#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cifar_mpi/comm/world.hpp"
#include "cifar_mpi/engine/layout.hpp"

/// Evaluates the ranks' slots of the control block: which rank is slow, and whether all hold the same parameters.
namespace cifar_mpi::watch {

/// Milliseconds of compute per step over the ranks.
struct RankTimes {
  double least = 0.0;
  double median = 0.0;  ///< of an even number of ranks, the lower one
  double most = 0.0;
  int slowest = 0;  ///< rank
};

/// Collects the compute times of an interval. A record carries the times of the previous replay, which took
/// `steps` steps, as its own does. The first record of a process has no times and does not count; neither
/// does a rank in a record whose sum excludes it.
class RankWatch {
 public:
  explicit RankWatch(int ranks) : layout_{ranks}, times_(static_cast<std::size_t>(ranks)) {}

  void add(const engine::StepRecord& record, int steps = 1);
  /// Means since the last call; nothing if no step was counted.
  std::optional<RankTimes> take();

 private:
  struct Times {
    double sum = 0.0;
    int steps = 0;
  };
  engine::ControlLayout layout_;
  std::vector<Times> times_;  ///< by rank
};

/// "rank 3 on node2 is the slowest: 61.2 ms of compute per step, the median is 54.0", or of two ranks "rank 1 on node2
/// is the slower one: 61.2 ms of compute per step, the other takes 54.0"; empty when it is at most a tenth slower.
std::string slowest_text(const RankTimes& times, const std::vector<std::string>& hosts);

/// Compares the parameter hashes of all ranks in a record. Empty when all are equal, else a sentence that
/// names the ranks that differ from the largest group of equal ones.
std::string desync_text(const engine::StepRecord& record, const std::vector<std::string>& hosts);
/// The same for these hashes, by rank, from before step number `step`, counted from 1.
std::string desync_text(const std::vector<std::uint64_t>& hashes, const std::vector<std::string>& hosts,
                        std::uint64_t step);

}  // namespace cifar_mpi::watch
