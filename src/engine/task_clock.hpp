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

/// Divides the time of one thread among tasks: at any moment one of them, or nobody, is charged.
///
/// The clock is read only when the charged task changes, so polling one collective in a loop reads it not at
/// all. Each change is also shown in a ProgressCounter: an addition and a store beside the reading of the
/// clock. What a Recorder is given costs one store more, and a reading of the thread's CPU clock.
class TaskClock {
 public:
  explicit TaskClock(std::size_t tasks) : seconds_(tasks, 0.0) {}

  /// Time before this belongs to nobody. Counts on from where the ProgressCounter stands: others may have shown
  /// in it.
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
  /// A task begins or has ended; shown with the next change, and that a task begins is one.
  void progress() { ++count_; }
  /// Something is done though no task begins or ends here: a piece of a task, or a replay of a device. Shown at once.
  void show_progress() {
    count_ = std::max(count_, counter_->snapshot().count) + 1;
    counter_->show(count_, owner_);
  }
  /// Shows the changes in `counter` from now on; it must outlive the clock.
  void show_in(ProgressCounter& counter) { counter_ = &counter; }
  /// Notes stretches in `recorder` from the next `begin` on, or, with null, none; what the recorder before has open ends.
  void record_in(Recorder* recorder) {
    if (recorder_ != nullptr) recorder_->end_replay(steady_nanoseconds());
    recorder_ = recorder;
  }
  TaskId charged() const { return owner_; }
  const std::vector<double>& seconds() const { return seconds_; }

 private:
  static constexpr TaskId kNobody = ProgressCounter::kNobody;

  /// For how long the thread has been on a core.
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
  std::int64_t cpu_since_ = 0;  ///< where there is a recorder
  Recorder* recorder_ = nullptr;
};

}  // namespace cifar_mpi::engine
