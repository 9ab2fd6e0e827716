#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cifar_mpi/comm/update.hpp"
#include "cifar_mpi/engine/layout.hpp"
#include "cifar_mpi/engine/replay.hpp"
#include "cifar_mpi/optim/schedule.hpp"
#include "cifar_mpi/report/metrics.hpp"
#include "cifar_mpi/report/progress_view.hpp"
#include "report/tensorboard.hpp"
#include "watch/rank_watch.hpp"

namespace cifar_mpi::report {

/// The meaning of a step number, and the interval between log lines.
struct StepScale {
  std::uint64_t total_steps = 0;
  double steps_per_epoch = 0.0;
  std::uint64_t global_batch = 0;  ///< samples of a step over all ranks
  std::uint64_t log_every = 10;    ///< steps
  /// A replay is one batch of this rank and may end several steps later.
  bool partial_aggregation = false;
};

/// The outputs for steps.
struct StepOutputs {
  ProgressView& view;
  MetricsFile& metrics;
  TensorBoard& board;
};

/// Reports steps to the log, metrics.jsonl and TensorBoard: a line every few steps with the mean speed since
/// the last one, each change of the learning rate except on a slope, and slow ranks. The rate of the first step of a run is in
/// the line of its schedule.
///
/// A step counts as done from the moment at which this is known, not from the reading of its record, which is
/// later. Every rank has a reporter; only rank 0's writes.
class StepReporter {
 public:
  /// When a replay was known to be done.
  struct Done {
    double seconds = 0.0;
    double communicated = -1.0;  ///< as of Communicated, if the replay has a log line
  };
  /// Seconds that this rank has spent in collectives so far; below 0: unknown.
  using Communicated = std::function<double()>;
  /// The counts of pushes so far, if there are servers.
  using Pushes = std::function<std::optional<comm::PushCounts>()>;

  /// `hosts`: of the ranks that compute. Everything that `out` and the functions refer to must outlive this object.
  StepReporter(
      int rank, std::vector<std::string> hosts, const StepScale& scale, const optim::Schedule& schedule,
      const StepOutputs& out, Communicated communicated, Pushes pushes = [] { return std::nullopt; });

  /// Starts an interval after `completed` steps: at the start, and after a pause that does not count as time of steps.
  void begin_interval(std::uint64_t completed);
  /// For the lines from here on.
  void note_test_accuracy(double accuracy) { test_accuracy_ = accuracy; }
  /// This replay is done.
  Done note_done(const engine::Replay& replay) const;
  /// The record of that replay; in order.
  void add(const engine::Replay& replay, const Done& done, const engine::StepRecord& record);

 private:
  /// Whether a log line is due in this replay; a replay of several steps has one line.
  bool has_line(const engine::Replay& replay) const {
    return replay.crosses(scale_.log_every) || replay.end == scale_.total_steps;
  }
  void announce_rate(std::uint64_t step);
  void report(std::uint64_t end, const Done& done, const engine::StepRecord& record);

  int rank_;
  std::vector<std::string> hosts_;
  StepScale scale_;
  optim::Schedule schedule_;
  StepOutputs out_;
  watch::RankWatch watch_;
  Communicated communicated_;
  Pushes pushes_;
  double interval_communicated_ = 0.0;
  double announced_rate_ = -1.0;
  double test_accuracy_ = -1.0;
  double started_ = -1.0;
  double interval_started_ = 0.0;
  std::uint64_t interval_step_ = 0;  ///< completed steps when the interval began
};

}  // namespace cifar_mpi::report
