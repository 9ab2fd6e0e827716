#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cifar_mpi/engine/program.hpp"

/// The times at which each task of each rank ran, in a few steps of a run. Efficiencies, verdict and traces
/// are computed from them.
///
/// All times are nanoseconds on rank 0's steady clock; those of other hosts are converted to it with the
/// uncertainty `Timeline::clock_uncertainty_ns`.
namespace cifar_mpi::report {

/// A stretch of time of one task on one rank.
///
/// On the host a thread is charged to one task at a time: slices do not overlap, a collective has one for
/// each stretch in which it was started, polled or waited for, and a task that polls collectives between its
/// pieces has several. On a device each task has one, and those of different lanes overlap.
struct Slice {
  std::int32_t task = 0;  ///< index into Timeline::tasks
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;

  bool operator==(const Slice&) const = default;
};

/// A task of the step program, the same on all ranks.
struct TimelineTask {
  std::string name;
  engine::LaneId lane = engine::kCompute;
  engine::TaskKind kind = engine::TaskKind::work;
  std::uint64_t bytes = 0;  ///< of a collective: the bytes it sums
  /// Indices into Timeline::tasks. Of a collective: the work tasks after which its lane may start it (the
  /// last writer of its bucket). Of a work task: the collectives that its lane has waited for.
  std::vector<std::int32_t> after;

  bool operator==(const TimelineTask&) const = default;
};

/// One rank in one step: from the beginning of its first task to the beginning of the next replay's, so it
/// includes the host's work in between.
struct RankStep {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::vector<Slice> slices;  ///< in the order of their beginnings; empty: this rank's step is missing
  std::uint64_t dropped =
      0;  ///< stretches for which there was no space; the times of such a step are too small
  /// Time for which the runner's thread was on a core in its work tasks; -1: unknown, as on a device.
  std::int64_t work_cpu_ns = -1;

  bool operator==(const RankStep&) const = default;
};

/// The sampled steps of a run.
struct Timeline {
  /// One replay of the step program.
  struct Step {
    std::uint64_t step = 0;       ///< completed steps before it
    std::vector<RankStep> ranks;  ///< by rank, as many as `hosts`

    bool operator==(const Step&) const = default;
  };

  std::string program;     ///< the step program's name
  std::string collective;  ///< the algorithm that sums the gradients
  std::string wire;        ///< the type in which it sends them
  /// --reproducible: sums are the same on any number of ranks, which rules out changes of other options.
  bool reproducible = false;
  std::uint64_t images_per_rank = 0;               ///< of a step
  std::uint64_t image_size = 0;                    ///< side of these images; 0: the network's input
  std::vector<TimelineTask> tasks;                 ///< by TaskId
  std::vector<std::string> hosts;                  ///< by rank
  std::vector<std::int64_t> clock_uncertainty_ns;  ///< by rank, of the translation; 0 on rank 0's host
  std::vector<Step> steps;                         ///< by step number, ascending

  bool operator==(const Timeline&) const = default;
};

/// Name of a program that consists of all local steps between two averagings.
inline constexpr const char* kLocalSteps = "local steps";
/// Ends the name of a program whose tasks sleep instead of computing.
inline constexpr const char* kSlept = ", slept";
inline bool is_local(const Timeline& timeline) { return timeline.program.starts_with(kLocalSteps); }

/// Whether servers update the weights, and ranks push and pull.
inline bool is_served(const Timeline& timeline) { return timeline.collective.starts_with("server"); }

}  // namespace cifar_mpi::report
