#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cifar_mpi/report/step_budget.hpp"
#include "report/sampled_steps.hpp"

namespace cifar_mpi::report {

/// Where the time of a step goes on the mean rank, in ms; the other members add up to `step`.
struct Losses {
  double step = 0.0;       ///< T
  double useful = 0.0;     ///< mean U(r)
  double imbalance = 0.0;  ///< max U(r) - mean: waiting for the rank that computes longest over all steps
  double wander =
      0.0;  ///< waiting for the rank that computes longest in a step, if it changes from step to step
  double host = 0.0;      ///< no task runs
  double order = 0.0;     ///< ranks are slow in different tasks of one step
  double transfer = 0.0;  ///< T - T_ideal
};
Losses losses_of(const Timeline& timeline, const SampledSteps& sampled);

/// Ranks that compute longer than the others over all steps.
struct SlowRanks {
  std::vector<int> ranks;       ///< empty if most ranks are as slow as the slowest
  double excess = 0.0;          ///< 0.18: 18 % longer than the mean of the others
  bool every_task = false;      ///< the excess is about the same share of every task
  std::string task;             ///< otherwise the task with the largest excess
  double task_excess_ms = 0.0;  ///< the excess of that task
  double others_ms = 0.0;       ///< mean useful time of a step on the other ranks
  int steps = 0;                ///< steps in which the excess is at least half as large
  /// The share of the waiting for each step's slowest rank that is for one of these.
  double share_of_waiting = 0.0;
  double least_ms = 0.0, most_ms = 0.0;  ///< useful time of a step over all ranks
};
SlowRanks slow_ranks(const Timeline& timeline, const SampledSteps& sampled);

/// The rank whose work tasks waited longest for a core that other work occupied: their wall time minus the
/// CPU time of the thread that runs them, in ms per step. Waiting in collectives does not count, nor do other
/// threads of the rank, which may sleep. Rank -1: unknown.
struct LostCores {
  int rank = -1;
  double ms = 0.0;
};
LostCores lost_cores(const Timeline& timeline, const SampledSteps& sampled);

/// The time that ranks spent in a collective after the last of them was ready for it, in ms of a step on the mean rank.
struct NetworkWait {
  std::int32_t task = 0;
  double ms = 0.0;
};
/// Longest first, without those that take no time.
std::vector<NetworkWait> network_waits(const Timeline& timeline, const SampledSteps& sampled);

/// The number of steps in which each rank computed longest, by its index.
std::vector<int> times_slowest(const Timeline& timeline, const SampledSteps& sampled);

/// Replayed times of a step after a change, in ms.
struct WhatIf {
  double now = 0.0;  ///< the unchanged step, by the same replay
  double half_wire = 0.0;
  double twice_batch = 0.0;
  double twice_batch_ideal = 0.0;  ///< the same on a network that takes no time
};
WhatIf what_if(const Timeline& timeline, const SampledSteps& sampled);

/// Time without a task after the last one of a step, by the index of the rank, in ms of a step.
std::vector<double> between_steps_ms(const SampledSteps& sampled);
/// Its share of all time without a task.
double share_between_steps(const SampledSteps& sampled);

/// The number of hosts of the sampled ranks.
std::size_t nodes_of(const Timeline& timeline, const SampledSteps& sampled);

/// The collective that ranks wait for longest: "bucket 1 between nodes".
std::string waited_for(const Timeline& timeline, const SampledSteps& sampled);

/// "; --wire bf16 would halve that, ...": options to try, with their replayed gains; empty if there are none.
/// Names no option that conflicts with the run's other options.
std::string network_advice(const Timeline& timeline, const SampledSteps& sampled, const Losses& losses,
                           const WhatIf& what_if);

/// " (256 images)": the images of a step of a rank with twice the batch; empty if the timeline lacks their number.
std::string twice_the_images(const Timeline& timeline);

}  // namespace cifar_mpi::report
