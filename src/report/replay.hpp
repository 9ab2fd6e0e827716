#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "report/sampled_steps.hpp"

namespace cifar_mpi::report {

/// Changes to apply in a replay.
struct Replay {
  /// Factor of the transfer time of collectives; 0: T_ideal of POP.
  double transfer = 0.0;
  /// Whether time without a task is kept.
  bool gaps = true;
  /// Factor of the work of a task on the rank of this index in SampledSteps::ranks; none: 1.
  std::function<double(std::size_t rank, std::int32_t task)> work = {};
};

/// The nanoseconds that the sampled steps take on the slowest rank. Ranks begin each step at their measured
/// times, because the differences come from before the step.
///
/// Each rank walks its stretches in their order. Work waits for the collectives in its `after`. A collective
/// is ready on a rank when the work in its `after` and the collective before it on its lane are done; it ends
/// on a rank when the last rank was ready and its measured time since that moment has passed. Stretches of
/// the collective itself take time only where the rank does not just wait: before work that waits for
/// collectives, and after all work, the replay computes the waiting instead.
double replay_ns(const Timeline& timeline, const SampledSteps& sampled, const Replay& replay);

/// The times that efficiencies and verdict are computed from, in ns over all sampled steps.
struct Usage {
  std::vector<double> useful;  ///< U(r), by the index of the rank
  double useful_sum = 0.0;
  double useful_most = 0.0;       ///< max U(r)
  double useful_most_each = 0.0;  ///< Σ_s max_r U(r,s)
  double time = 0.0;              ///< T
  double ideal = 0.0;             ///< T_ideal, between `useful_most` and `time`
};
Usage usage_of(const Timeline& timeline, const SampledSteps& sampled);

/// The useful time of a rank in a step.
double useful_ns(const Timeline& timeline, const std::vector<Stretch>& stretches);

}  // namespace cifar_mpi::report
