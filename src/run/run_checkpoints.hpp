#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/comm/world.hpp"
#include "cifar_mpi/report/progress_view.hpp"
#include "run/checkpoint_writer.hpp"

namespace cifar_mpi::run {

/// A configuration as a checkpoint carries it to others: without the lines whose values are paths, which name
/// users and places. config.toml in the run directory has them.
std::string without_paths(const std::string& configuration);

/// Keeps of the checkpoints up to `step`, with which the run goes on, what is to be kept now, and sets the link to the
/// best: it may not have been asked for until now, the last start may have been killed before it had done so, and a
/// smaller Retention::keep makes room on a full disk, so nothing is written before. Nothing is removed where `step` has no
/// file here. Throws Error{io}.
void begin_retention(const Directory& run, std::uint64_t step, const Retention& retention);

/// The checkpoints of a run that trains: copied out at a step boundary, written while training goes on.
///
/// A checkpoint that cannot be written is a warning on standard error, each time; training goes on.
class RunCheckpoints {
 public:
  /// Copies the state after `step` steps out of the device. Called on rank 0, between steps.
  using Snapshot = std::function<Checkpoint(std::uint64_t step, std::optional<double> test_accuracy)>;

  /// `world`, `run`, `view` and what `snapshot` refers to must outlive this object.
  RunCheckpoints(const comm::World& world, const Directory& run, const Retention& retention,
                 Snapshot snapshot, report::ProgressView& view);
  /// Called on rank 0 at each save; what it gives writes another file of the run, which belongs to the checkpoint, on
  /// the thread that writes this and behind it. It refers to nothing that training changes.
  using Beside = std::function<WriteBeside()>;
  /// From now on. A file that cannot be written is one warning for all of the run.
  void also_write(Beside beside) { beside_.push_back(std::move(beside)); }

  /// Waits for the file being written and says how that went.
  ~RunCheckpoints();
  RunCheckpoints(const RunCheckpoints&) = delete;
  RunCheckpoints& operator=(const RunCheckpoints&) = delete;

  /// Collective; between steps. Whether a checkpoint of `step` with this test accuracy, which is not written yet, would be
  /// better than all that are on the disk. Waits for the file being written. The same on all ranks.
  bool would_be_best(std::uint64_t step, double test_accuracy);

  /// Nothing when no checkpoint was evaluated, or while a file is being written. Rank 0.
  std::optional<BestCheckpoint> best(std::uint64_t newest);

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
  void collect();
  void report(const WriteReport& report);

  const comm::World& world_;
  Snapshot snapshot_;
  report::ProgressView& view_;
  const Directory& run_;
  const Retention retention_;
  std::vector<Beside> beside_;
  bool warned_ = false;      ///< of files beside the checkpoints
  CheckpointWriter writer_;  ///< idle but on rank 0
  double copy_s_ = 0.0;      ///< for how long the last `save` held training up
  double last_seconds_ = 0.0;
  std::optional<std::uint64_t> written_;  ///< newest step on the disk
  std::string unwritten_;                 ///< what is wrong with the newest state, empty when it is written
};

}  // namespace cifar_mpi::run
