#pragma once

#include <cstdint>
#include <utility>

#include "report/summary_history.hpp"
#include "report/tensorboard.hpp"
#include "run/run_checkpoints.hpp"
#include "train/session_state.hpp"

namespace cifar_mpi::train {

/// Histograms of variables, gradients and activations during training: for TensorBoard, and
/// RUN_DIR/summaries.h5, which is written with each checkpoint, so that a resumed run finds the earlier ones.
///
/// Every rank has one. All ranks run the observers of the step program in the same steps, because graphs with
/// collectives must be the same on all ranks; only rank 0 reads the results, and the others wait for it in
/// the next sum.
class Summaries {
 public:
  /// After `completed` steps. A file in the run directory that is not this program's gives one warning and is
  /// replaced at the first checkpoint.
  Summaries(const step::Plan& plan, const step::Device& device, const step::Blocks& blocks,
            Programs& programs, report::TensorBoard& board, std::uint64_t completed);

  /// Whether a step of these has a summary: the run's first and every --summary-every-th.
  bool due_within(const engine::Replay& steps) const;
  /// The same for all steps up to `end` since the last call.
  bool take_due(std::uint64_t end) { return due_within({std::exchange(asked_, end), end}); }
  /// Called on every rank before the replay of a step that is due, which is launched by itself, and after it;
  /// rank 0 then writes the summary. `recorder` is the runner's recorder, which it keeps, or null.
  void begin(engine::Recorder* recorder);
  void end(const engine::Replay& replay, engine::Recorder* recorder);

  /// A function that writes the file's current contents; for a thread.
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
