#pragma once

#include <cstdint>
#include <functional>

#include "report/sampled_steps.hpp"

namespace cifar_mpi::report {

/// The changes of a replay.
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
/// Each rank walks its stretches in their order. Work waits for the collectives in its `after`. A collective is ready
/// on a rank when the work in its `after` and the collective before it on its lane are done; it ends on a rank when the
/// last rank was ready and its measured time since that moment has passed. Its own stretches take time only if the rank
/// was not waiting: before work that waits for collectives, and after all work, waiting is what is replayed.
double replay_ns(const Timeline& timeline, const SampledSteps& sampled, const Replay& replay);

}  // namespace cifar_mpi::report
