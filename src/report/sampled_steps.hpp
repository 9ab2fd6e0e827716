#pragma once

#include <cstdint>
#include <vector>

#include "cifar_mpi/report/timeline.hpp"

namespace cifar_mpi::report {

/// A stretch of a rank's time, of one task or of none.
struct Stretch {
  static constexpr std::int32_t kNobody = -1;

  std::int32_t task = kNobody;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  /// Of a collective: the next work begins a task that waits for collectives, or no work follows.
  bool waited_for = false;
  /// Of work: the first stretch of its task in the step.
  bool begins = false;

  double ns() const { return static_cast<double>(end_ns - begin_ns); }
};

/// The steps of a timeline that can be compared over ranks, each rank's as stretches that follow each other
/// without a gap from the step's beginning to its end.
///
/// If slices overlap (lanes of a device), work takes precedence over collectives, and earlier slices over
/// later ones. A work task that is covered by others keeps one stretch of zero length at its end.
struct SampledSteps {
  /// Indexed like `ranks`.
  struct Step {
    std::vector<std::vector<Stretch>> ranks;
    std::vector<std::int64_t> work_cpu_ns;  ///< RankStep's
    /// Of each task that is a collective: when the last rank was ready for it; else unspecified.
    std::vector<std::int64_t> ready_ns;
    /// By rank, then task: the time from then to its end there; 0 if unknown.
    std::vector<std::vector<double>> transfer_ns;
  };

  std::vector<int> ranks;    ///< ranks recorded in any step
  std::vector<int> missing;  ///< ranks recorded in none
  std::vector<Step> steps;
  int left_out = 0;  ///< steps in which one of `ranks` is missing
};
SampledSteps sampled_steps(const Timeline& timeline);

/// The factor from nanoseconds over all sampled steps to milliseconds of one step.
double ms_of_a_step(const SampledSteps& sampled);

/// The time of each task on each rank, ms of a step: [task][rank].
std::vector<std::vector<double>> task_ms(const Timeline& timeline, const SampledSteps& sampled);

/// The collectives of a step in the order of their lane, with the one before each on the lane, or -1.
struct CollectiveOrder {
  std::int32_t task = 0;
  std::int32_t before = -1;
};
std::vector<CollectiveOrder> collectives_of(const Timeline& timeline);

bool is_collective(const Timeline& timeline, std::int32_t task);
/// The valid indices in a task's `after`: only the collectives, or only the others.
std::vector<std::int32_t> predecessors(const Timeline& timeline, std::int32_t task, bool collectives);

}  // namespace cifar_mpi::report
