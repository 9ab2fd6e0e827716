#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cifar_mpi/engine/recorder.hpp"
#include "cifar_mpi/engine/runner.hpp"
#include "cuda/device.hpp"
#include "cuda/lane.hpp"
#include "engine/task_clock.hpp"

namespace cifar_mpi::cuda {

/// A moment with its time on the clocks of host and device.
class Anchor {
 public:
  /// Sets it to the present. The stream must be idle. The host's time is exact to the time from enqueueing an event to
  /// seeing it happen, about 10 µs: the shortest of several attempts counts.
  void set(cudaStream_t stream);
  /// The host's time of an event that has happened.
  std::int64_t host_nanoseconds(const Event& event) const;

 private:
  Event event_;
  std::int64_t host_ns_ = 0;
};

/// Two events for each task of a program, recorded on its lane before and after it.
class Stopwatches {
 public:
  /// Makes the events that are missing.
  void make(std::size_t tasks);
  void begin(engine::TaskId task, cudaStream_t stream) { record(begins_, task, stream); }
  void end(engine::TaskId task, cudaStream_t stream) {
    record(ends_, task, stream);
    ran_[static_cast<std::size_t>(task)] = true;
  }
  /// Adds the tasks that ran since the last call, and are done, to the recorder as one replay, in the order in which they
  /// began. Returns when the last one ended.
  std::int64_t read(const Anchor& anchor, engine::Recorder& recorder);

 private:
  static void record(const std::vector<Event>& events, engine::TaskId task, cudaStream_t stream);

  std::vector<Event> begins_, ends_;  ///< by task
  std::vector<bool> ran_;             ///< by task; an observer does not run in every replay
};

/// The common part of all runners: the program, its lanes, and the words that host and device exchange in a replay.
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
  /// Whether the task is a host task, which `poll` drives.
  bool is_of_host(engine::TaskId id) const { return static_cast<bool>(task(id).poll); }

  /// Enqueues the task of an instruction. A host task is started instead: its lane must have finished all earlier work,
  /// and nothing may be enqueued there until `poll` returns true.
  void start(const engine::Instruction& line);
  bool poll(const engine::Instruction& line);

  /// Returns when the event has happened.
  void wait_for(const Event& event, const std::string& what);
  /// Call it in the loop of a waiting host: it lets other threads run and calls the watches every 0.1 s.
  void give_way();

  Device& device_;
  engine::StepProgram program_;
  std::vector<StreamLane> lanes_;
  bool look_ = false;

 private:
  struct Launch {
    Event done;
    std::uint64_t replays = 0;  ///< of this launch and all earlier ones
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
  engine::TaskClock clock_;         ///< shows the host tasks, and that a launch is done
  double looked_ = 0.0;             ///< when the watches were called
  engine::Recorder* recorder_ = nullptr;
  Anchor anchor_;                ///< set if there is a recorder
  std::int64_t device_end_ = 0;  ///< the end of the last recorded replay
};

/// A runner for programs of this backend: one stream per lane, events for marks. The device must outlive it.
///
///   serial  waits for every task and measures its time on the device, as a Gate leaves it (host_link.hpp)
///   lanes   enqueues the list in each replay
///   graph   does the same in the first call, which loads every kernel and opens NCCL's connections. Later calls
///           launch a graph of as many replays as they are asked for, which is captured when that number comes first.
///           Replays with observers have graphs of their own.
///   audit   is serial and watches `regions`; see engine::RunnerKind
///
/// A program with host tasks (engine::Task::poll) cannot be a graph, so `graph` means `lanes` for it. A call then
/// returns when its host tasks are done and everything after them is enqueued; otherwise, when its replays are enqueued
/// and those of the previous call are done. The records of finished replays are then where advance_task was asked to
/// put them, so two calls in a row must not have more than kRecordRing replays together.
///
/// NCCL requires the same captures and launches on all ranks of a communicator, so all ranks must make the same calls of
/// this interface in the same order. Throws std::logic_error when the program is not finalized.
std::unique_ptr<engine::Runner> make_runner(Device& device, engine::StepProgram program,
                                            engine::RunnerKind kind, std::vector<engine::Bytes> regions);

}  // namespace cifar_mpi::cuda
