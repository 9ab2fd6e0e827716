#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <string>

/// Decides when a run must stop to have time for its last checkpoint.
namespace cifar_mpi::watch {

/// What ends a run, in seconds from the moment at which training begins.
struct TimeLimits {
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  double stop_after_s = kNever;  ///< the user's: the last step begins before it
  double job_end_s = kNever;     ///< the job's: everything must be written before it
};

/// `stop_after` minutes (0: no limit) and the remaining time of a SLURM job: SLURM_JOB_END_TIME, seconds
/// since 1970, compared once with the wall clock, `wall_now`. An end that is not a number, already over or
/// more than ten years away is ignored.
TimeLimits time_limits(double stop_after_minutes, const std::function<const char*(const char*)>& environment,
                       double wall_now);

/// Made when training begins; the rank that decides for all queries it before every step. It has no clock of
/// its own: `now` is in seconds on a steady clock; if the clock goes back, the latest time counts.
class Deadline {
 public:
  /// The least time kept for the last steps, the checkpoint and the exit.
  static constexpr double kLeastMargin = 10.0;

  Deadline(const TimeLimits& limits, double now) : limits_(limits), began_(now), last_(now) {}

  /// Records how long a checkpoint took.
  void checkpoint_took(double seconds);
  /// The time kept free before the job's end: three checkpoints of the longest kind and two of the longest
  /// pause between queries (a step or an evaluation), at least kLeastMargin.
  double margin() const;
  /// Once true: the sentence to log.
  std::optional<std::string> due(double now);
  /// For the log at start; empty without limits.
  std::string describe() const;

 private:
  TimeLimits limits_;
  double began_;
  double last_;
  double longest_checkpoint_ = 0.0;
  double longest_pause_ = 0.0;
};

}  // namespace cifar_mpi::watch
