#pragma once

#include <vector>

#include "cifar_mpi/engine/program.hpp"

namespace cifar_mpi::engine {

/// Adds tasks to a program in the order in which they may always run, and lets those that say `concurrent` run
/// beside what follows, on the first side lane: each begins when all before it on the compute lane is done,
/// and the compute lane waits for them where a later task touches what they do, at `join`, and not before.
///
/// The order within either lane is that of the calls. Which tasks wait for which follows from the bytes they
/// declare, so the bits are those of the tasks in a row.
class Branches {
 public:
  /// With `concurrent` false every task goes on the compute lane.
  Branches(StepProgram& program, bool concurrent) : program_(program), concurrent_(concurrent) {}

  void run(Task task);
  /// `lane` waits for all tasks so far.
  void wait(LaneId lane);
  /// The compute lane waits for all concurrent tasks.
  void join();

 private:
  bool touches_open(const Task& task) const;

  StepProgram& program_;
  bool concurrent_;
  bool forked_ = false;     ///< nothing was run on the compute lane since the side lane waited for it
  std::vector<Task> open_;  ///< concurrent since the last join; their bytes alone
};

}  // namespace cifar_mpi::engine
