#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "cifar_mpi/base/directory.hpp"

/// RUN_DIR/lock: one run at a time in a run directory, also across machines and after any kind of crash.
namespace cifar_mpi::run {

/// The process that holds a run directory; the lock's content, one `key=value` per line.
struct LockHolder {
  std::string token;  ///< of this lock alone
  std::string host;
  std::uint64_t pid = 0;
  std::uint64_t process_start = 0;  ///< of that process, in ticks since its machine started
  std::string boot;                 ///< of that machine
  std::string pid_namespace;        ///< to which `pid` belongs
  std::string job;                  ///< of SLURM, or empty
  std::uint64_t restarts = 0;       ///< of that job
  std::string since;                ///< wall time, for messages
  double heartbeat_s = 10.0;        ///< between renewals of the file's modification time; 0: not stated
};

/// This process, with a fresh token; job and restarts as SLURM's environment has them.
LockHolder this_process(double heartbeat_s = 10.0);

std::string to_text(const LockHolder& holder);
/// Unreadable fields keep their defaults, except the heartbeat, which becomes 0.
LockHolder parse_lock(const std::string& text);

/// Why `holder` cannot be running any more: it is an earlier start of the same SLURM job, or its process is
/// visibly gone (same host, boot and PID namespace). Empty if it may be running.
std::string why_stale(const LockHolder& holder, const LockHolder& me);

/// How long a lock must stay unchanged before it is stale: three heartbeats of `holder`, or of `me` when the
/// lock does not state its heartbeat.
double patience_s(const LockHolder& holder, const LockHolder& me);

/// Holds RUN_DIR/lock from construction to destruction, with a thread that renews it.
///
/// A holder that may be running is watched: its lock is stale if it does not change for `patience_s` of this
/// process's own steady clock. No time stamp is compared with any clock, because a file system may take time
/// stamps from the clock of the node that writes (Lustre does), and nodes' clocks differ.
///
/// On a full disk the lock is an empty file until there is space, which the thread tries again at each
/// heartbeat: a start with a smaller --keep can free some.
///
/// Of several processes that find a stale lock, one gets it. To replace the lock with token T, a process must
/// first create `lock.after.T`, which only one can, and the lock must still have token T and be unchanged
/// since it was judged.
class RunLock {
 public:
  using Listener = std::function<void(const std::string&)>;
  using Pause = std::function<void(double seconds)>;  ///< returns after that time, a second at most

  /// Throws Error{checkpoint} if another run holds the directory, naming the holder, since when, and what to
  /// do; Error{io} if nothing can be written there. `report` receives a sentence when a lock is being watched
  /// and one when a stale lock is taken over; `pause` waits between two looks at a watched lock. `lost` is
  /// called once, on the lock's own thread, if another run took over this lock, which happens only after this
  /// process was stopped for three heartbeats. `run`, the opened run directory, must outlive this object.
  RunLock(const Directory& run, LockHolder me, const Listener& report, Listener lost,
          const Pause& pause = sleep_for);
  /// Removes the lock if it still belongs to this object.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// False if another run has taken over the directory.
  bool held() const;

  static void sleep_for(double seconds);

 private:
  RunLock(const Directory& run, LockHolder me, const Listener& report, const Pause& pause);

  struct Heart;
  void sign();

  DirectoryEntry lock_;
  LockHolder me_;
  bool signed_ = false;  ///< the lock has its content: on a full disk it is empty at first
  std::unique_ptr<Heart> heart_;
};

}  // namespace cifar_mpi::run
