#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cifar_mpi/optim/schedule.hpp"
#include "cifar_mpi/report/metrics.hpp"
#include "run/checkpoint_writer.hpp"
#include "train/state.hpp"

namespace cifar_mpi::train {

/// The checkpoints of a run that trains: copied out at a step boundary, written while training goes on.
///
/// A checkpoint that cannot be written is a warning on standard error, each time; training goes on.
class RunCheckpoints {
 public:
  /// Both must outlive this object.
  RunCheckpoints(const SessionState& state, report::ProgressView& view);
  /// Waits for the file being written and says how that went.
  ~RunCheckpoints();
  RunCheckpoints(const RunCheckpoints&) = delete;
  RunCheckpoints& operator=(const RunCheckpoints&) = delete;

  /// Collective; between steps. Copies the state after `step` steps and begins to write it, after waiting for
  /// the file before it. Saving a step again adds what became known of it: the test accuracy.
  void save(std::uint64_t step, std::optional<double> test_accuracy);

  /// Reports a file that has been written since; costs nothing when there is none.
  void poll();

  /// Collective. Waits for the file being written. Throws an AgreedError{io} when the newest state saved is
  /// not on the disk.
  void require_written();

  /// Seconds from `save` to the file's safety, of the last one written; 0 when there is none. Rank 0.
  double last_seconds() const { return last_seconds_; }

 private:
  run::Checkpoint snapshot(std::uint64_t step, std::optional<double> test_accuracy) const;
  void settle();
  void report(const run::WriteReport& report);

  const SessionState& s_;
  report::ProgressView& view_;
  optim::Schedule schedule_;
  run::CheckpointWriter writer_;  ///< idle but on rank 0
  double copy_s_ = 0.0;           ///< for how long the last `save` held training up
  double last_seconds_ = 0.0;
  std::optional<std::uint64_t> written_;  ///< newest step on the disk
  std::string unwritten_;                 ///< what is wrong with the newest state, empty when it is written
};

}  // namespace cifar_mpi::train
