#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <vector>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/engine/progress_counter.hpp"
#include "cifar_mpi/engine/recorder.hpp"

namespace cifar_mpi::engine {

/// Divides the time of one thread among tasks: at any moment it charges one task or none.
///
/// It reads the clock only when the charged task changes, so polling one collective in a loop is free. Each
/// change is also shown in a ProgressCounter, at the cost of an addition and a store. A Recorder costs one
/// more store and a reading of the thread's CPU clock.
class TaskClock {
 public:
  explicit TaskClock(std::size_t tasks) : seconds_(tasks, 0.0) {}

  /// Earlier time is not charged. The count continues from the ProgressCounter, which other runners may have
  /// used.
  void begin() {
    owner_ = kNobody, since_ = steady_nanoseconds(), count_ = counter_->snapshot().count;
    if (recorder_ == nullptr) return;
    recorder_->begin_replay(since_);
    cpu_since_ = thread_cpu_nanoseconds();
  }
  void charge(TaskId task) {
    if (task != owner_) hand_over(task);
  }
  void charge_nobody() { charge(kNobody); }
  /// A task begins or ends; shown with the next change of the charged task.
  void progress() { ++count_; }
  /// Shows progress inside a task at once: the end of a piece, or of a device's replay.
  void show_progress() {
    count_ = std::max(count_, counter_->snapshot().count) + 1;
    counter_->show(count_, owner_);
  }
  /// Shows the changes in `counter` from now on; it must outlive the clock.
  void show_in(ProgressCounter& counter) { counter_ = &counter; }
  /// Records stretches in `recorder` from the next `begin` on; null: records nothing. Ends the previous
  /// recorder's open replay.
  void record_in(Recorder* recorder) {
    if (recorder_ != nullptr) recorder_->end_replay(steady_nanoseconds());
    recorder_ = recorder;
  }
  TaskId charged() const { return owner_; }
  const std::vector<double>& seconds() const { return seconds_; }

 private:
  static constexpr TaskId kNobody = ProgressCounter::kNobody;

  /// Time that the thread has spent on a core.
  static std::int64_t thread_cpu_nanoseconds() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return std::int64_t{1'000'000'000} * time.tv_sec + time.tv_nsec;
  }

  void hand_over(TaskId task) {
    const std::int64_t now = steady_nanoseconds();
    if (owner_ != kNobody) {
      seconds_[static_cast<std::size_t>(owner_)] += 1e-9 * static_cast<double>(now - since_);
    }
    if (recorder_ != nullptr) {
      const std::int64_t cpu = thread_cpu_nanoseconds();
      if (owner_ != kNobody) recorder_->add(owner_, since_, now, cpu - cpu_since_);
      cpu_since_ = cpu;
    }
    owner_ = task;
    since_ = now;
    counter_->show(count_, task);
  }

  std::vector<double> seconds_;
  ProgressCounter unseen_;
  ProgressCounter* counter_ = &unseen_;
  std::uint64_t count_ = 0;
  TaskId owner_ = kNobody;
  std::int64_t since_ = 0;
  std::int64_t cpu_since_ = 0;  ///< valid with a recorder
  Recorder* recorder_ = nullptr;
};

}  // namespace cifar_mpi::engine
