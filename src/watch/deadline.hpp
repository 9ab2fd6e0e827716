#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <string>

/// When a run has to stop by itself, early enough to leave a checkpoint.
namespace cifar_mpi::watch {

/// What ends a run, in seconds from the moment at which training begins.
struct TimeLimits {
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  double stop_after_s = kNever;  ///< the user's: the last step begins before it
  double job_end_s = kNever;     ///< the job's: everything must be written before it
};

/// `stop_after` minutes (0: no limit) and what is left of a SLURM job: SLURM_JOB_END_TIME, seconds since
/// 1970, compared once with the wall clock, `wall_now`. An end that is not a number, already over or more
/// than ten years away is not believed.
TimeLimits time_limits(double stop_after_minutes, const std::function<const char*(const char*)>& environment,
                       double wall_now);

/// Made when training begins, asked before every step by the rank whose stop word decides for all. Keeps no
/// clock: `now` are seconds on one that does not go back; when it does, the latest time counts.
class Deadline {
 public:
  /// Never less time than this is left for the last steps, the checkpoint and leaving.
  static constexpr double kLeastMargin = 10.0;

  Deadline(const TimeLimits& limits, double now) : limits_(limits), began_(now), last_(now) {}

  /// One more checkpoint was written, in so many seconds.
  void checkpoint_took(double seconds);
  /// What is kept free before the job's end: three checkpoints of the longest kind and two of the longest
  /// pause between questions (a step or an evaluation), at least kLeastMargin.
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
