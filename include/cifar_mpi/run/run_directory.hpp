#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cifar_mpi/base/directory.hpp"
#include "cifar_mpi/base/input_file.hpp"
#include "cifar_mpi/comm/heartbeat.hpp"
#include "cifar_mpi/comm/world.hpp"
#include "cifar_mpi/run/run_lock.hpp"

/// The files of a run directory: checkpoints/step_000001000.h5, checkpoints/latest, checkpoints/best, lock, exit.
///
/// A run directory is opened once. All files are reached from there, and no link below it is followed: a user
/// who may write into it can damage the run, but cannot redirect it to another place. Each of these calls
/// opens the folder of checkpoints anew, so a run continues if that folder was moved away.
namespace cifar_mpi::run {

/// Opens RUN_DIR; creates it and RUN_DIR/checkpoints if they are missing. Throws Error{io}.
Directory make_folders(const std::string& run_dir);

/// "step_000001000.h5"
std::string checkpoint_name(std::uint64_t step);
/// RUN_DIR/checkpoints/step_000001000.h5, for messages.
std::string checkpoint_path(const std::string& run_dir, std::uint64_t step);

/// Opens a checkpoint for reading. Never throws: the result says why it cannot be opened.
InputFile open_checkpoint(const Directory& run, std::uint64_t step);
/// The same for a path that the user typed: a file, or a run directory for its newest checkpoint. Links are followed, but a
/// link called `latest` or `best` must point to a checkpoint in its own folder, because other users may have made it.
InputFile open_checkpoint(const std::string& path);
/// Opens RUN_DIR/checkpoints for writing. Throws Error{io}.
Directory checkpoint_folder(const Directory& run);

/// The steps of the files with names of exactly this form, ascending; none if the folder does not exist.
/// Throws Error{io} if it exists but cannot be read, so that a run does not start over next to its own
/// checkpoints.
std::vector<std::uint64_t> list_checkpoints(const Directory& run);

/// Which checkpoints are kept: the newest `keep`, those of steps divisible by `keep_every` (0: none), and
/// that of the best test accuracy.
struct Retention {
  int keep = 5;
  std::int64_t keep_every = 0;
  bool keep_best = false;
  int views = 1;  ///< of the evaluations among which the best is chosen
};

/// Removes the others up to `newest`, the step just written, but not `best`. Later files (damaged ones that
/// were skipped) are neither counted nor removed. Never throws; a file that cannot be removed stays.
void retire_checkpoints(const Directory& run, std::uint64_t newest, const Retention& retention,
                        std::optional<std::uint64_t> best = std::nullopt);

/// Sets RUN_DIR/checkpoints/latest, a relative link for users; no program depends on it. Throws Error{io}.
void link_latest(const Directory& run, std::uint64_t step);
/// The same for RUN_DIR/checkpoints/best; without a step, such a link is removed. A link that is already
/// correct is not touched.
void link_best(const Directory& run, std::optional<std::uint64_t> step);

/// Removes the temporary files of killed writers: those of checkpoints, links and other files that a run
/// replaces atomically. Call it only under the lock. Throws Error{io}.
void remove_temporary_files(const Directory& run);

/// Free bytes of the file system; empty if the system does not say.
std::optional<double> free_bytes(const Directory& run);

/// Writes RUN_DIR/exit, "CODE sentence" on one line, unless it exists: the first record is the right one.
/// Callable from any rank and thread; never throws, but warns on standard error.
void record_exit(const Directory& run, int code, const std::string& sentence) noexcept;

/// The content of RUN_DIR/exit, made printable; empty if there is no such file.
std::string recorded_exit(const Directory& run);

/// A run's hold on its directory: the lock, and the record of how the run ended.
class RunDirectory {
 public:
  /// Collective. Rank 0 makes the folders, takes the lock, and removes temporary files and the record of the
  /// previous start, unless that one finished the run. If another run holds the lock, it changes nothing and
  /// throws Error{checkpoint}. Throws Error{io} if the directory cannot be written. No rank returns before rank 0
  /// has made the folder; the others then open it if they see it. `world` must outlive this object; if another
  /// run takes over the lock, all ranks are ended. Rank 0 may have to watch an abandoned lock for half a minute;
  /// meanwhile all ranks show progress in `heart`.
  RunDirectory(std::string path, const comm::World& world, comm::Heartbeat* heart = nullptr);

  /// Removes the lock, and the folders if this start made them and did not reach `begin`.
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  /// Marks the start of training: from here on this run's end replaces the record of a finished run. A start
  /// that is refused earlier keeps that record and removes the folders it made. Collective: no rank returns
  /// before rank 0 has removed that record, which would hide the end of a rank that fails at once.
  void begin();

  /// Removes the record of a finished run if this start failed before `begin` for a reason that is not the user's.
  void drop_finished_record() const noexcept;

  /// The opened folder; empty on a rank other than 0 that cannot open it.
  const Directory& directory() const { return directory_; }

  /// Runs `body` and records its end before objects outside of `body` are destroyed: success and agreed
  /// errors by rank 0, others by the rank that fails. Rethrows exceptions.
  void record_end_of(const std::function<void()>& body) const;

  /// How the previous start ended, "CODE sentence" on one line; empty if it left no record. Rank 0.
  const std::string& last_end() const { return last_end_; }

 private:
  Directory directory_;
  std::string last_end_;
  const comm::World& world_;
  std::optional<RunLock> lock_;      ///< of rank 0
  bool made_ = false;                ///< this start made the folder; on rank 0
  std::atomic<bool> begun_ = false;  ///< the watchdog's thread reads it
};

}  // namespace cifar_mpi::run
