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

/// serial: every task is finished before the next begins (to bisect). lanes: as the program allows. graph:
/// lanes, captured once (CUDA). audit: serial, and around each task every byte of the arena that the task did
/// not declare is overwritten with NaN and checked afterwards, so that a declaration cannot lie; slow.
enum class RunnerKind : std::uint8_t { automatic, serial, lanes, graph, audit };
constexpr auto names_of(RunnerKind) {
  return std::to_array<Name<RunnerKind>>({{"auto", RunnerKind::automatic},
                                          {"serial", RunnerKind::serial},
                                          {"lanes", RunnerKind::lanes},
                                          {"graph", RunnerKind::graph},
                                          {"audit", RunnerKind::audit}});
}

/// What is done in some replays beside the program's own work. It changes no bit of what the program computes.
struct Observation {
  Recorder* recorder = nullptr;  ///< notes when the tasks run; null: nobody does
  bool look = false;             ///< the tasks that say `observer` run too
};

/// Replays one finalized program. The same bits come out of every kind.
class Runner {
 public:
  virtual ~Runner() = default;

  /// Runs the program `times` times in a row, at least once; a runner of graphs starts them as one. When it
  /// returns, all replays before these are done: a host runner returns when these are done too, a device
  /// runner when they are enqueued. So the device has something to work on while the host reads the records
  /// of what was before. Throws what a task throws; the program's memory is then unspecified.
  virtual void replay(int times) = 0;
  void replay() { replay(1); }
  /// Returns when everything enqueued is done.
  virtual void finish() = 0;
  /// Replays that were done when `replay` or `finish` last returned.
  virtual std::uint64_t finished() const = 0;
  virtual const StepProgram& program() const = 0;
  /// Seconds spent in each task since the start, by TaskId; waiting for a collective counts as that
  /// collective's task. Empty where a runner cannot tell (lanes and graph on CUDA).
  virtual std::vector<double> task_seconds() const = 0;
  /// Holds for the replays that follow, until it is called again; `recorder` must live as long. When it returns,
  /// all that was recorded before stands in the recorder of before, whose last replay ends now; `finish` leaves that
  /// open. A device runner waits here for what is enqueued, when either call has a recorder.
  virtual void observe(const Observation& observation) = 0;
  /// Whether an ordinary replay is a graph, which is replayed task by task while there is a recorder.
  virtual bool replays_graphs() const { return false; }
  /// From now on shows in `counter`, which must outlive the runner, which task it is in. Several runners of one
  /// thread may share it. A runner that does not know, because its tasks run elsewhere, shows nothing.
  virtual void show_in(ProgressCounter& /*counter*/) {}
};

/// How a host runner gives way while it only waits.
enum class WhileWaiting : std::uint8_t { spin, yield };

/// A runner for programs whose tasks run on the host (serial, lanes or audit): one thread replays the tasks
/// and polls the outstanding collectives between them; there is no communication thread. `regions` is the
/// memory that `audit` watches. Throws std::logic_error when the program is not finalized.
std::unique_ptr<Runner> make_host_runner(StepProgram program, RunnerKind kind, WhileWaiting waiting,
                                         std::vector<Bytes> regions);

}  // namespace cifar_mpi::engine
