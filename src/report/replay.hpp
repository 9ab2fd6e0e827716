#pragma once

#include <cstdint>
#include <functional>

#include "report/sampled_steps.hpp"

namespace cifar_mpi::report {

/// What is put together anew.
struct Replay {
  /// Of the time that collectives take of a network and of the ranks' threads, this share; 0: T_ideal of POP.
  double transfer = 0.0;
  /// Whether time of no task stays.
  bool gaps = true;
  /// What work of this task is multiplied by on the rank of this index in SampledSteps::ranks; none: 1.
  std::function<double(std::size_t rank, std::int32_t task)> work = {};
};

/// Nanoseconds that the sampled steps take the rank that they take longest. Ranks begin a step as they did, one later
/// than the other: what made it so lies in front of it, and is no matter of its collectives.
///
/// Each rank walks its stretches in their order. Work waits for the collectives in its `after`. A collective is
/// ready on a rank when the work in its `after` and the collective before it on its lane are done; it ends on a
/// rank when the last rank was ready and its measured time since that moment has passed. Its stretches take time
/// only where the rank was not waiting: in front of work that waits for collectives, and behind all work, they
/// are what is replayed.
double replay_ns(const Timeline& timeline, const SampledSteps& sampled, const Replay& replay);

}  // namespace cifar_mpi::report
