#pragma once

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

/// What lies in a run directory, by name: checkpoints/step_000001000.h5, checkpoints/latest,
/// checkpoints/best, lock, exit.
///
/// A run directory is opened once. Everything in it is reached from there, and no link below it is followed: whoever may
/// write in it can spoil the run, but lead it to no other place. The folder of checkpoints is opened for each of these
/// calls anew, so that a run goes on when it was moved away.
namespace cifar_mpi::run {

/// Opens RUN_DIR, which it makes, with RUN_DIR/checkpoints, where they are missing. Throws Error{io}.
Directory make_folders(const std::string& run_dir);

/// "step_000001000.h5"
std::string checkpoint_name(std::uint64_t step);
/// RUN_DIR/checkpoints/step_000001000.h5, for people.
std::string checkpoint_path(const std::string& run_dir, std::uint64_t step);

/// A checkpoint that is to be read. Never throws: the file says why it cannot be opened.
InputFile open_checkpoint(const Directory& run, std::uint64_t step);
/// The same of a path that the user typed. It may lead through links, but one called `latest` or `best`, which others may
/// have put there, must name a checkpoint in its own folder.
InputFile open_checkpoint(const std::string& path);
/// RUN_DIR/checkpoints for what is to be written. Throws Error{io}.
Directory checkpoint_folder(const Directory& run);

/// The steps of the files that bear exactly such a name, ascending; none when there is no such folder. Throws Error{io}
/// when there is one and it cannot be read: a run must not begin anew beside its own checkpoints.
std::vector<std::uint64_t> list_checkpoints(const Directory& run);

/// Which checkpoints stay: the newest `keep`, those of steps divisible by `keep_every` (0: none), and that of the best
/// test accuracy.
struct Retention {
  int keep = 5;
  std::int64_t keep_every = 0;
  bool keep_best = false;
};

/// Removes the others among those up to `newest`, the step just written; `best` stays. What lies beyond it (damaged files
/// that were skipped) neither counts nor goes. Never throws; a file that cannot be removed stays.
void retire_checkpoints(const Directory& run, std::uint64_t newest, const Retention& retention,
                        std::optional<std::uint64_t> best = std::nullopt);

/// Sets RUN_DIR/checkpoints/latest, a relative link, for people; no program depends on it. Throws Error{io}.
void link_latest(const Directory& run, std::uint64_t step);
/// The same for RUN_DIR/checkpoints/best; without a step a link of that name is removed. A link that is right already
/// is left as it is.
void link_best(const Directory& run, std::optional<std::uint64_t> step);

/// Removes what killed writers left: temporary files of checkpoints and their links, and of the other files that a run
/// replaces at once. Only under the lock. Throws Error{io}.
void remove_temporary_files(const Directory& run);

/// Writes RUN_DIR/exit, "CODE sentence" on one line, unless it is there: the first to know how a run ended is
/// right. From any rank and thread; never throws, but warns on standard error.
void record_exit(const Directory& run, int code, const std::string& sentence) noexcept;

/// What stands in RUN_DIR/exit, made printable; empty when there is no such file.
std::string recorded_exit(const Directory& run);

/// A run's hold on its directory: the lock, and the record of how the run ended.
class RunDirectory {
 public:
  /// Collective. Rank 0 makes the folders, takes the lock, and removes the last record and temporary files;
  /// nothing is touched when another run holds the lock (Error{checkpoint}). Throws Error{io} when nothing
  /// can be written. The other ranks open what rank 0 made, where they see it. `world` must outlive this object; all
  /// ranks are ended when another run takes the lock over. Rank 0 may have to watch a lock that was left behind, half a
  /// minute long; all ranks meanwhile make progress in `heart`.
  RunDirectory(std::string path, const comm::World& world, comm::Heartbeat* heart = nullptr);

  /// The opened folder; none on another rank than 0 that cannot open it.
  const Directory& directory() const { return directory_; }

  /// Runs `body` and records its end before anything of it is torn down that `body` did not make itself:
  /// success and agreed errors by rank 0, others by the rank that fails. Passes exceptions on.
  void record_end_of(const std::function<void()>& body) const;

  /// How the start before this one ended, "CODE sentence", on one line; empty when it left no record. Rank 0.
  const std::string& last_end() const { return last_end_; }

 private:
  Directory directory_;
  std::string last_end_;
  const comm::World& world_;
  std::optional<RunLock> lock_;  ///< of rank 0
};

}  // namespace cifar_mpi::run
