#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cifar_mpi/engine/recorder.hpp"
#include "cifar_mpi/engine/runner.hpp"
#include "cuda/device.hpp"
#include "cuda/lane.hpp"
#include "engine/task_clock.hpp"

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

/// What all runners share: the program, its lanes, and what passes between host and device around a replay.
class DeviceRunner : public engine::Runner {
 public:
  DeviceRunner(Device& device, engine::StepProgram program);

  void replay(int times) final;
  void finish() final;
  std::uint64_t finished() const final { return finished_; }
  const engine::StepProgram& program() const final { return program_; }
  std::vector<double> task_seconds() const override { return {}; }
  void observe(const engine::Observation& observation) final;
  void show_in(engine::ProgressCounter& counter) final { clock_.show_in(counter); }

 protected:
  virtual void enqueue(int times) = 0;

  bool recording() const { return recorder_ != nullptr; }
  cudaStream_t stream(engine::LaneId lane) const { return lanes_[static_cast<std::size_t>(lane)].stream(); }
  const engine::Task& task(engine::TaskId id) const { return program_.tasks()[static_cast<std::size_t>(id)]; }
  bool skips(engine::TaskId id) const { return !look_ && task(id).observer; }
  /// Whether the host moves it forward.
  bool is_of_host(engine::TaskId id) const { return static_cast<bool>(task(id).poll); }

  /// Enqueues the task of a line. One of the host it starts: all before it in its lane is done, and nothing may be
  /// enqueued behind it until `poll` says that it is done.
  void start(const engine::Instruction& line);
  bool poll(const engine::Instruction& line);

  /// Whether the event has happened. Throws Error{device} when the device has failed.
  static bool has_happened(const Event& event, const std::string& what);
  /// Returns when the event has happened.
  void wait_for(const Event& event, const std::string& what);
  /// For a host that waits, again and again: lets others run, and looks at the watches now and then.
  void give_way();

  Device& device_;
  engine::StepProgram program_;
  std::vector<StreamLane> lanes_;
  bool look_ = false;

 private:
  struct Launch {
    Event done;
    std::uint64_t replays = 0;  ///< done with it and all before it
    bool recorded = false;
    Stopwatches watches;
  };

  Stopwatches& watches() { return launches_[launched_ % launches_.size()].watches; }
  void launch(int times);
  void wait_until(Launch& launch);

  std::vector<const RequestWord*> words_;
  std::vector<RecordRing*> rings_;
  std::array<Launch, 2> launches_;  ///< the last two
  std::uint64_t launched_ = 0;      ///< launches
  std::uint64_t finished_ = 0;      ///< replays
  engine::TaskClock clock_;         ///< shows the tasks of the host, and that a launch is done
  double looked_ = 0.0;             ///< when the watches were looked at
  engine::Recorder* recorder_ = nullptr;
  Anchor anchor_;                ///< where there is a recorder
  std::int64_t device_end_ = 0;  ///< of the last replay that was recorded
};

}  // namespace cifar_mpi::cuda
