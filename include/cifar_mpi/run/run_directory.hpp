#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cifar_mpi/comm/world.hpp"
#include "cifar_mpi/run/run_lock.hpp"

/// What lies in a run directory, by name: checkpoints/step_000001000.h5, checkpoints/latest,
/// checkpoints/best, lock, exit.
namespace cifar_mpi::run {

struct CheckpointFile {
  std::uint64_t step = 0;
  std::string path;
};

/// Makes RUN_DIR and RUN_DIR/checkpoints where they are missing. Throws Error{io}.
void make_folders(const std::string& run_dir);

/// RUN_DIR/checkpoints/step_000001000.h5
std::string checkpoint_path(const std::string& run_dir, std::uint64_t step);

/// The files that bear exactly such a name, oldest first; none when there is no such folder. Throws Error{io}
/// when there is one and it cannot be read: a run must not begin anew beside its own checkpoints.
std::vector<CheckpointFile> list_checkpoints(const std::string& run_dir);

/// Which checkpoints stay: the newest `keep`, those of steps divisible by `keep_every` (0: none), and that of the best
/// test accuracy.
struct Retention {
  int keep = 5;
  std::int64_t keep_every = 0;
  bool keep_best = false;
};

/// Removes the others among those up to `newest`, the step just written; `best` stays. What lies beyond it (damaged files
/// that were skipped) neither counts nor goes. Never throws; a file that cannot be removed stays.
void retire_checkpoints(const std::string& run_dir, std::uint64_t newest, const Retention& retention,
                        std::optional<std::uint64_t> best = std::nullopt);

/// Sets RUN_DIR/checkpoints/latest, a relative link, for people; no program depends on it. Throws Error{io}.
void link_latest(const std::string& run_dir, std::uint64_t step);
/// The same for RUN_DIR/checkpoints/best; without a step a link of that name is removed. A link that is right already
/// is left as it is.
void link_best(const std::string& run_dir, std::optional<std::uint64_t> step);

/// Removes what killed writers left: temporary files of checkpoints, of `latest` and of `best`. Only under the lock.
void remove_temporary_files(const std::string& run_dir);

/// Writes RUN_DIR/exit, "CODE sentence" on one line, unless it is there: the first to know how a run ended is
/// right. From any rank and thread; never throws, but warns on standard error.
void record_exit(const std::string& run_dir, int code, const std::string& sentence) noexcept;

/// What stands in RUN_DIR/exit, made printable; empty when there is no such file.
std::string recorded_exit(const std::string& run_dir);

/// A run's hold on its directory: the lock, and the record of how the run ended.
class RunDirectory {
 public:
  /// Collective. Rank 0 makes the folders, takes the lock, and removes the last record and temporary files;
  /// nothing is touched when another run holds the lock (Error{checkpoint}). Throws Error{io} when nothing
  /// can be written. `world` must outlive this object; all ranks are ended when another run takes the lock
  /// over.
  RunDirectory(std::string path, const comm::World& world);

  /// Runs `body` and records its end before anything of it is torn down that `body` did not make itself:
  /// success and agreed errors by rank 0, others by the rank that fails. Passes exceptions on.
  void record_end_of(const std::function<void()>& body) const;

  /// How the start before this one ended, "CODE sentence", on one line; empty when it left no record. Rank 0.
  const std::string& last_end() const { return last_end_; }

 private:
  std::string path_;
  std::string last_end_;
  const comm::World& world_;
  std::optional<RunLock> lock_;  ///< of rank 0
};

}  // namespace cifar_mpi::run
