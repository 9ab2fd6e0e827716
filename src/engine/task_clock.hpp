#pragma once

#include <cstddef>
#include <vector>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/engine/program.hpp"

namespace cifar_mpi::engine {

/// Divides the time of one thread among tasks: at any moment one of them, or nobody, is charged.
///
/// The clock is read only when the charged task changes, so polling one collective in a loop reads it not at
/// all.
class TaskClock {
 public:
  explicit TaskClock(std::size_t tasks) : seconds_(tasks, 0.0) {}

  /// Time before this belongs to nobody.
  void begin() { owner_ = kNobody, since_ = steady_seconds(); }
  void charge(TaskId task) {
    if (task != owner_) hand_over(task);
  }
  void charge_nobody() { charge(kNobody); }
  const std::vector<double>& seconds() const { return seconds_; }

 private:
  static constexpr TaskId kNobody = -1;

  void hand_over(TaskId task) {
    const double now = steady_seconds();
    if (owner_ != kNobody) seconds_[static_cast<std::size_t>(owner_)] += now - since_;
    owner_ = task;
    since_ = now;
  }

  std::vector<double> seconds_;
  TaskId owner_ = kNobody;
  double since_ = 0.0;
};

}  // namespace cifar_mpi::engine
