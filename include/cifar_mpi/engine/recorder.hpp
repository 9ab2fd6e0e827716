#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cifar_mpi/engine/program.hpp"

namespace cifar_mpi::engine {

/// Stores when the tasks of a few replays ran.
///
/// All memory is allocated in advance, so recording is a store. Replays and stretches beyond the capacity are
/// dropped and counted.
///
/// Times are nanoseconds on this machine's steady clock. A host runner records a stretch each time its thread
/// is charged to a task, in sequence: a collective that is polled between tasks has many. A device runner
/// records one stretch per task; those of different lanes overlap.
class Recorder {
 public:
  struct Slice {
    TaskId task = 0;
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;
    std::int64_t cpu_ns = -1;  ///< part of it on a core; -1: unknown, as on a device
  };
  /// From the start of a replay to the start of the next one.
  struct Replay {
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;
    std::span<const Slice> slices;
    std::uint64_t dropped = 0;  ///< stretches beyond the capacity
  };

  /// Memory that is never written costs nothing. Throws std::bad_alloc.
  Recorder(std::size_t replays, std::size_t slices_per_replay)
      : most_replays_(replays),
        most_slices_(slices_per_replay),
        slices_(std::make_unique_for_overwrite<Slice[]>(replays * slices_per_replay)) {
    replays_.reserve(replays);
  }

  /// For runners: begins a replay and ends the previous one.
  void begin_replay(std::int64_t now) {
    end_replay(now);
    open_ = !full();
    if (open_) replays_.push_back({now, now, 0, 0});
  }
  void add(TaskId task, std::int64_t begin_ns, std::int64_t end_ns, std::int64_t cpu_ns = -1) {
    if (!open_) return;
    Kept& replay = replays_.back();
    if (replay.slices == most_slices_) {
      ++replay.dropped;
      return;
    }
    slices_[(replays_.size() - 1) * most_slices_ + replay.slices++] = {task, begin_ns, end_ns, cpu_ns};
  }
  /// Does nothing if no replay is open.
  void end_replay(std::int64_t now) {
    if (open_) replays_.back().end_ns = now;
    open_ = false;
  }

  /// Recorded replays since `clear`.
  std::size_t replays() const { return replays_.size(); }
  bool full() const { return replays_.size() == most_replays_; }
  /// Whether the last replay has not ended.
  bool open() const { return open_; }
  Replay operator[](std::size_t i) const {
    const Kept& replay = replays_[i];
    return {
        replay.begin_ns, replay.end_ns, {slices_.get() + i * most_slices_, replay.slices}, replay.dropped};
  }
  void clear() {
    replays_.clear();
    open_ = false;
  }

 private:
  struct Kept {
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;
    std::size_t slices = 0;
    std::uint64_t dropped = 0;
  };

  std::size_t most_replays_;
  std::size_t most_slices_;  ///< of a replay
  std::unique_ptr<Slice[]> slices_;
  std::vector<Kept> replays_;
  bool open_ = false;
};

}  // namespace cifar_mpi::engine
