#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "cifar_mpi/base/names.hpp"
#include "cifar_mpi/engine/program.hpp"
#include "cifar_mpi/engine/progress_counter.hpp"
#include "cifar_mpi/engine/recorder.hpp"

namespace cifar_mpi::engine {

/// serial: one task after another (to bisect). lanes: concurrently where the program allows it. graph: lanes,
/// captured once (CUDA). audit: serial, but slow: around each task, it overwrites every byte of the arena
/// that the task did not declare with NaN and checks these bytes afterwards, which exposes wrong
/// declarations.
enum class RunnerKind : std::uint8_t { automatic, serial, lanes, graph, audit };
constexpr auto names_of(RunnerKind) {
  return std::to_array<Name<RunnerKind>>({{"auto", RunnerKind::automatic},
                                          {"serial", RunnerKind::serial},
                                          {"lanes", RunnerKind::lanes},
                                          {"graph", RunnerKind::graph},
                                          {"audit", RunnerKind::audit}});
}

/// Additional work in some replays. It changes no bit of the program's results.
struct Observation {
  Recorder* recorder = nullptr;  ///< records when tasks run; null: nothing is recorded
  bool look = false;             ///< also run the tasks marked `observer`
};

/// Replays one finalized program. All kinds compute the same bits.
class Runner {
 public:
  virtual ~Runner() = default;

  /// Runs the program `times` times in a row, at least once; a graph runner launches them together. On return
  /// all earlier replays are done. A host runner has then finished these too; a device runner has enqueued
  /// them, so the device stays busy while the host reads earlier records. Throws what a task throws; the
  /// program's memory is then unspecified.
  virtual void replay(int times) = 0;
  void replay() { replay(1); }
  /// Returns when everything enqueued is done.
  virtual void finish() = 0;
  /// Replays that were done when `replay` or `finish` last returned.
  virtual std::uint64_t finished() const = 0;
  virtual const StepProgram& program() const = 0;
  /// Seconds spent in each task since the start, by TaskId, including waits for collectives. Empty if the
  /// runner cannot tell (lanes and graph on CUDA).
  virtual std::vector<double> task_seconds() const = 0;
  /// Applies to later replays until the next call; `recorder` must live until then. On return the previous
  /// recorder is complete, and its last replay ends; `finish` leaves that replay open. With a recorder in
  /// either call, a device runner waits for enqueued work.
  virtual void observe(const Observation& observation) = 0;
  /// Whether an ordinary replay is a graph; with a recorder, it is replayed task by task.
  virtual bool replays_graphs() const { return false; }
  /// Shows the current task in `counter`, which must outlive the runner. The runners of a thread may share
  /// it. A device runner shows nothing, because it does not know.
  virtual void show_in(ProgressCounter& /*counter*/) {}
};

/// What a host runner does while it waits.
enum class WhileWaiting : std::uint8_t { spin, yield };

/// A runner for programs whose tasks run on the host (serial, lanes or audit). One thread replays the tasks
/// and polls outstanding collectives between them; there is no communication thread. `audit` watches the
/// memory in `regions`. Throws std::logic_error when the program is not finalized.
std::unique_ptr<Runner> make_host_runner(StepProgram program, RunnerKind kind, WhileWaiting waiting,
                                         std::vector<Bytes> regions);

}  // namespace cifar_mpi::engine
