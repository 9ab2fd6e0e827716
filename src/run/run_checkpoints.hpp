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

/// A configuration for a checkpoint that may be passed on: without the lines whose values are paths, which
/// reveal users and places. config.toml in the run directory has them.
std::string without_paths(const std::string& configuration);

/// Applies `retention` to the checkpoints up to `step`, from which the run resumes, and sets the link to the
/// best. The previous start may have had another retention, or have been killed before it did this. A smaller
/// Retention::keep frees space on a full disk, so this comes before all writes. Nothing is removed if `step`
/// has no file here. Throws Error{io}.
void begin_retention(const Directory& run, std::uint64_t step, const Retention& retention);

/// The checkpoints of a run that trains: copied at a step boundary, written while training continues.
///
/// A checkpoint that cannot be written causes a warning on standard error, each time; training continues.
class RunCheckpoints {
 public:
  /// Copies the state after `step` steps out of the device. Called on rank 0, between steps.
  using Snapshot = std::function<Checkpoint(std::uint64_t step, std::optional<double> test_accuracy)>;

  /// `world`, `run`, `view` and what `snapshot` refers to must outlive this object.
  RunCheckpoints(const comm::World& world, const Directory& run, const Retention& retention,
                 Snapshot snapshot, report::ProgressView& view);
  /// Called on rank 0 at each save. The function it returns writes another file of the run, after the
  /// checkpoint and on the same thread; it must not refer to anything that training changes.
  using Beside = std::function<WriteBeside()>;
  /// Takes effect from the next save on. A file that cannot be written causes one warning per run.
  void also_write(Beside beside) { beside_.push_back(std::move(beside)); }

  /// Waits for the file being written and reports the result.
  ~RunCheckpoints();
  RunCheckpoints(const RunCheckpoints&) = delete;
  RunCheckpoints& operator=(const RunCheckpoints&) = delete;

  /// Collective; between steps. Whether a checkpoint of `step` with this test accuracy, not yet written,
  /// would be better than all on the disk. Waits for the file being written. The same on all ranks.
  bool would_be_best(std::uint64_t step, double test_accuracy);

  /// Empty if no checkpoint was evaluated, or while a file is being written. Rank 0 only.
  std::optional<BestCheckpoint> best(std::uint64_t newest);

  /// Collective; between steps. Copies the state after `step` steps and begins to write it, after waiting for
  /// the previous file. Saving a step again adds its test accuracy.
  void save(std::uint64_t step, std::optional<double> test_accuracy);

  /// Reports a file that has been written meanwhile; cheap if there is none.
  void poll();

  /// Collective. Waits for the file being written. Throws an AgreedError{io} when the newest state saved is
  /// not on the disk.
  void require_written();

  /// Seconds from `save` until the last file was on the disk; 0 if there is none. Rank 0 only.
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
  bool warned_ = false;      ///< about files other than checkpoints
  CheckpointWriter writer_;  ///< used on rank 0 only
  double copy_s_ = 0.0;      ///< how long the last `save` delayed training
  double last_seconds_ = 0.0;
  std::optional<std::uint64_t> written_;  ///< newest step on the disk
  std::string unwritten_;                 ///< the problem of the newest state; empty if it is written
};

}  // namespace cifar_mpi::run
