#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cifar_mpi/engine/recorder.hpp"
#include "cuda/handles.hpp"

/// When the tasks of a replay ran on the device, by the host's steady clock.
namespace cifar_mpi::cuda {

/// A moment that both clocks know.
class Anchor {
 public:
  /// Now; nothing may be under way on the stream. The host knows the moment to about the time that it takes to enqueue an
  /// event and to see it, 10 µs: of several attempts the shortest counts.
  void set(cudaStream_t stream);
  /// Of an event that has happened.
  std::int64_t host_nanoseconds(const Event& event) const;

 private:
  Event event_;
  std::int64_t host_ns_ = 0;
};

/// Two events for each task of a program. The lanes set them; what lies between is the task, and what stands
/// in its lane behind it waits for the second.
class Stopwatches {
 public:
  /// Nothing when they are there.
  void make(std::size_t tasks);
  void begin(engine::TaskId task, cudaStream_t stream) { record(begins_, task, stream); }
  void end(engine::TaskId task, cudaStream_t stream) {
    record(ends_, task, stream);
    ran_[static_cast<std::size_t>(task)] = true;
  }
  /// Adds a replay of the tasks that ran since the last time, which are done, to the recorder, in the order of their
  /// beginnings. When the last one ended.
  std::int64_t read(const Anchor& anchor, engine::Recorder& recorder);

 private:
  static void record(const std::vector<Event>& events, engine::TaskId task, cudaStream_t stream);

  std::vector<Event> begins_, ends_;  ///< by task
  std::vector<bool> ran_;             ///< likewise; an observer does not in every replay
};

}  // namespace cifar_mpi::cuda
