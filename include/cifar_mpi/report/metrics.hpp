#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "cifar_mpi/base/directory.hpp"
#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/base/names.hpp"
#include "cifar_mpi/comm/update.hpp"
#include "cifar_mpi/report/best_effort_file.hpp"

namespace cifar_mpi::report {

/// The content of a log line.
struct StepReport {
  std::uint64_t step = 0;  ///< completed steps
  std::uint64_t total_steps = 0;
  double epoch = 0.0;
  double cross_entropy = 0.0;
  double decay_term = 0.0;
  double train_accuracy = 0.0;  ///< of this step's batch, before its update
  double test_accuracy = -1.0;  ///< of the last evaluation by this process; below 0: none
  double learning_rate = 0.0;
  double gradient_norm = 0.0;      ///< of the summed gradient, before it is clipped; 0: unknown
  double seconds_per_step = 0.0;   ///< true step time, mean since the last report
  double images_per_second = 0.0;  ///< over all ranks
  double seconds = 0.0;            ///< since this process began to train
  double compute_ms_min =
      0.0;  ///< compute per step of the fastest rank, without waiting for others; 0: unknown
  double compute_ms_median = 0.0;
  double compute_ms_max = 0.0;
  int slowest_rank = -1;  ///< that of compute_ms_max; -1: unknown
  double exposed_communication_ms =
      -1.0;  ///< of a step, in which rank 0 was in collectives; below 0: unknown
  /// Counts since this process began to train, if there are servers. Of the reports read from a file, only
  /// the last has them.
  std::optional<comm::PushCounts> pushes;
};

/// A text for the log: the number of applied pushes, and the bytes of the busiest worker and server.
std::string pushes_text(const comm::PushCounts& pushes);

/// The least staleness that this share of the pushes does not exceed.
std::uint64_t staleness_quantile(const comm::PushCounts& pushes, double share);

/// The result of an evaluation on the test split.
struct EvaluationReport {
  std::uint64_t step = 0;
  double epoch = 0.0;
  double test_accuracy = 0.0;
  double cross_entropy = 0.0;
  int views = 1;  ///< of each image, --views
};

/// Events that concern a whole run.
enum class RunEventKind {
  start,
  resume,  ///< from a checkpoint
  stop,    ///< on request, or because time ran out
  fault,   ///< the ranks agreed that the run cannot continue
  end,     ///< done
};
constexpr auto names_of(RunEventKind) {
  return std::to_array<Name<RunEventKind>>({{"start", RunEventKind::start},
                                            {"resume", RunEventKind::resume},
                                            {"stop", RunEventKind::stop},
                                            {"fault", RunEventKind::fault},
                                            {"end", RunEventKind::end}});
}

struct RunEvent {
  RunEventKind kind = RunEventKind::start;
  std::uint64_t step = 0;  ///< completed steps
  std::string time;        ///< wall time, for display
  std::string text;   ///< of a stop or a fault: why; of a resume: how the previous start ended, "" if unknown
  int ranks = 0;      ///< of a start or resume, as are those below
  std::string hosts;  ///< "node1 x 4, node2 x 4"
  std::uint64_t global_batch = 0;
  std::uint64_t total_steps = 0;
  std::uint64_t reached =
      0;  ///< the last step that the previous start reported; steps after `step` are repeated
};

/// RUN_DIR/metrics.jsonl: one JSON object per line, training reports, evaluations and events; the first line
/// of a new file states format and version. Rank 0 only.
///
/// Lines go to a BestEffortFile: a full disk costs lines, not the run.
class MetricsFile {
 public:
  MetricsFile() = default;
  /// Opens for appending, after removing the lines of steps after `step` (a resumed run writes them again)
  /// and lines torn by a kill. With `evaluates_again` also removes the evaluations of `step` itself, which a
  /// run killed at its very end repeats. Throws Error{io} with the system's reason, or for a file of another
  /// version; the file is then unchanged.
  MetricsFile(const DirectoryEntry& file, std::uint64_t step, const Log& log = Log(),
              bool evaluates_again = false);

  void write(const StepReport& report);
  void write(const EvaluationReport& report);
  void write(const RunEvent& event);

  /// The last step in the file before it was cut back.
  std::uint64_t reached() const { return reached_; }

 private:
  void line(std::string json);

  std::uint64_t reached_ = 0;
  BestEffortFile file_;
};

}  // namespace cifar_mpi::report
