#pragma once

#include <utility>
#include <vector>

#include "cifar_mpi/engine/program.hpp"

namespace cifar_mpi::engine {

/// Adds tasks to a program in an order in which they may run one after another. Tasks marked `concurrent` run
/// on the first side lane beside later tasks: each starts after all earlier tasks of the compute lane. The
/// compute lane waits for them only at `join`, or before a task that touches their bytes.
///
/// Each lane keeps the order of the calls. The waits follow from the bytes that tasks declare, so the bits
/// are those of serial execution.
class Branches {
 public:
  /// With `concurrent` false every task goes on the compute lane.
  Branches(StepProgram& program, bool concurrent) : program_(program), concurrent_(concurrent) {}

  void run(Task task);
  void run_all(std::vector<Task> tasks) {
    for (Task& task : tasks) run(std::move(task));
  }
  /// The task runs on `lane`, after all earlier tasks of the compute lane and before all later tasks. Concurrent tasks
  /// that touch other bytes continue beside it.
  void run_on(LaneId lane, Task task);
  /// `lane` waits for all tasks so far.
  void wait(LaneId lane);
  /// The compute lane waits for all concurrent tasks.
  void join();

 private:
  bool touches_open(const Task& task) const;

  StepProgram& program_;
  bool concurrent_;
  bool forked_ = false;     ///< no task went to the compute lane since the side lane waited for it
  std::vector<Task> open_;  ///< concurrent tasks since the last join, with their bytes only
};

}  // namespace cifar_mpi::engine
