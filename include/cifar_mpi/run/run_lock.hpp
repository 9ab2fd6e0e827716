#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cifar_mpi/base/directory.hpp"

/// RUN_DIR/lock: one run at a time in a run directory, also over several machines and after any kind of
/// death.
namespace cifar_mpi::run {

/// Who holds a run directory; what stands in the lock, a `key=value` a line.
struct LockHolder {
  std::string token;  ///< of this lock alone
  std::string host;
  std::uint64_t pid = 0;
  std::uint64_t process_start = 0;  ///< of that process, in ticks since its machine started
  std::string boot;                 ///< of that machine
  std::string pid_namespace;        ///< in which `pid` means something
  std::string job;                  ///< of SLURM, or empty
  std::uint64_t restarts = 0;       ///< of that job
  std::string since;                ///< wall time, for people
  double heartbeat_s = 10.0;        ///< the file's modification time is renewed at least so often
};

/// This process, with a fresh token; job and restarts as SLURM's environment has them.
LockHolder this_process(double heartbeat_s = 10.0);

std::string to_text(const LockHolder& holder);
/// What cannot be read stays as it is by default.
LockHolder parse_lock(const std::string& text);

/// Why `holder` can no longer be running, in words, or empty. `silent_s` is the time since its last
/// heartbeat, by the clock of the file system that holds the lock.
///
/// It cannot when it was an earlier start of the same SLURM job; when its process is gone and that can be
/// seen from here (same host, boot and namespace of process numbers); or when three heartbeats are missing.
std::string why_stale(const LockHolder& holder, const LockHolder& me, double silent_s);

/// Holds RUN_DIR/lock from construction to destruction, with a thread that renews it.
///
/// On a full disk the lock is an empty file until there is room, which the thread tries again at each heartbeat: a start
/// with a smaller --keep can make some.
///
/// Of several starters that find a stale lock, one gets it: to replace the lock with token T one must first
/// create `lock.after.T`, which only one can, and find the lock still to be T's.
class RunLock {
 public:
  /// Throws Error{checkpoint} when another run holds the directory: who, since when, what to do; Error{io}
  /// when nothing can be written there. `took_over` hears why a stale lock was no obstacle. `lost` is called,
  /// once, on the lock's own thread, when another run took this lock over, which it does only when this
  /// process stood still for three heartbeats. `run`, the opened run directory, must outlive this object.
  using Listener = std::function<void(const std::string&)>;
  RunLock(const Directory& run, LockHolder me, const Listener& took_over, Listener lost);
  /// Removes the lock if it is still this one's.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// False when another run holds the directory now.
  bool held() const;

 private:
  RunLock(const Directory& run, LockHolder me, const Listener& took_over);

  struct Heart;
  void sign();

  DirectoryEntry lock_;
  LockHolder me_;
  bool signed_ = false;  ///< the lock says whose it is: on a full disk it is empty at first
  std::unique_ptr<Heart> heart_;
};

}  // namespace cifar_mpi::run
