#pragma once

#include <atomic>
#include <cstdint>

#include "cifar_mpi/engine/program.hpp"

namespace cifar_mpi::engine {

/// The current task of a runner, and a count of the tasks that it began or ended, readable from another
/// thread or, in shared memory, from another process. The runners of a thread may share it, one after
/// another.
///
/// Both values share one word, so a snapshot is consistent. An update is one relaxed store by the running
/// thread; it orders nothing.
class ProgressCounter {
 public:
  static constexpr TaskId kNobody = -1;

  struct Snapshot {
    std::uint64_t count =
        0;                  ///< grows while any of its runners makes progress; polling in vain does not count
    TaskId task = kNobody;  ///< the charged task; a collective while the runner waits for it

    bool operator==(const Snapshot&) const = default;
  };

  void show(std::uint64_t count, TaskId task) {
    word_.store(count << kTaskBits | (static_cast<std::uint64_t>(task + 1) & kTaskMask),
                std::memory_order_relaxed);
  }
  Snapshot snapshot() const {
    const std::uint64_t word = word_.load(std::memory_order_relaxed);
    return {word >> kTaskBits, static_cast<TaskId>(word & kTaskMask) - 1};
  }

 private:
  static constexpr int kTaskBits = 16;
  static constexpr std::uint64_t kTaskMask = (std::uint64_t{1} << kTaskBits) - 1;

  std::atomic<std::uint64_t> word_{0};
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "it is read by other processes");
};

}  // namespace cifar_mpi::engine
