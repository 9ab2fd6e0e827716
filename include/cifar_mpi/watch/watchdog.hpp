#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cifar_mpi/comm/heartbeat.hpp"
#include "cifar_mpi/engine/program.hpp"

namespace cifar_mpi::watch {

struct WatchdogOptions {
  /// The job ends after this many seconds in which no rank of the job makes progress, one rank makes none in
  /// a task in which it waits for no other rank, or a rank that others need shows no sign of life. The limit
  /// is five times as long while starting, in each check of a device and at a checkpoint; there is none while
  /// watching and measuring. 0: never. The same on all ranks.
  double timeout_s = 120.0;
  /// Called once, on the rank that reports for its node, before the job is ended, with the exit code and the sentence
  /// that was printed. It has kLastWords seconds. Runs on a thread of its own; the loop must not wait for it.
  std::function<void(int, const std::string&)> before_end;
  /// Called after every look, a few times a second, on the watchdog's thread, with the seconds since the previous look.
  std::function<void(double)> at_look;
};

/// Ends a job that would wait forever. Every rank of a program has one.
///
/// A thread looks at the heartbeats of the node four times a second and makes no MPI call, because MPI is used from the
/// main thread only. One rank of each node reports to the other nodes once a second how long its ranks have made no
/// progress, by UDP (watch/node_reports.hpp). watch/stall.hpp defines what ends a job, and when. One rank of the node
/// then prints which rank hangs, where and since when, and all ranks exit by _exit with the code of Error{comm}, or
/// Error{device} when a rank hung in the self-check of its device; a launcher ends the rest of the job when a rank
/// exits like that. A process that is stopped is continued and ended by the launcher.
class Watchdog {
 public:
  static constexpr double kLastWords = 5.0;

  /// Collective; ends the start phase of `world`, which must outlive this object.
  Watchdog(const comm::World& world, WatchdogOptions options);
  /// Marks this rank as exiting, which has no time limit; the others report it only if its process ends while
  /// they still watch.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// This rank's heartbeat, for its loop to fill in.
  comm::Heartbeat& heart();
  /// The program that this rank replays in training; collective: gathers the names of the tasks of all ranks,
  /// whose programs may differ. Call before the first step.
  void name_tasks(const engine::StepProgram& program);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cifar_mpi::watch
