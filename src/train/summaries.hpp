#pragma once

#include <cstdint>
#include <utility>

#include "report/summary_history.hpp"
#include "report/tensorboard.hpp"
#include "run/run_checkpoints.hpp"
#include "train/session_state.hpp"

namespace cifar_mpi::train {

/// Histograms of variables, gradients and activations of a run that trains: for TensorBoard, and RUN_DIR/summaries.h5,
/// which is written beside each checkpoint, so that a run that goes on finds what belongs before it.
///
/// Every rank has one. All ranks run the observers of the step program in the same steps, because graphs with collectives must
/// be the same on all ranks; rank 0 alone reads what they find, and the others wait for it in the next sum.
class Summaries {
 public:
  /// After `completed` steps. What is in the run directory and not ours is one warning, and goes with the first
  /// checkpoint.
  Summaries(const step::Plan& plan, const step::Device& device, const step::Blocks& blocks,
            Programs& programs, report::TensorBoard& board, std::uint64_t completed);

  /// Whether a step of these has a summary: the run's first and every --summary-every-th.
  bool due_within(const engine::Replay& steps) const;
  /// Likewise of all steps up to `end` since the last call.
  bool take_due(std::uint64_t end) { return due_within({std::exchange(asked_, end), end}); }
  /// Before the replay of a step that is due, which is launched by itself, and after it, on every rank; rank 0 then
  /// writes the summary. `recorder` is the one that the runner has, or null: it goes on.
  void begin(engine::Recorder* recorder);
  void end(const engine::Replay& replay, engine::Recorder* recorder);

  /// What writes the file as it is to be now; for a thread.
  run::WriteBeside write_file() const;

 private:
  report::StepSummary read(std::uint64_t step) const;
  report::InputImages images() const;

  const step::Plan& plan_;
  const step::Device& device_;
  const step::Blocks& blocks_;
  Programs& programs_;
  report::TensorBoard& board_;
  std::uint64_t asked_;  ///< steps for which it is known whether there is a summary
  DirectoryEntry file_;
  report::SummaryHistory history_;
};

}  // namespace cifar_mpi::train
