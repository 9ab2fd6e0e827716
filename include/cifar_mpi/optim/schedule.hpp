#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cifar_mpi/optim/step_math.hpp"

/// Step → value functions, pure so that every rank and every device computes the same.
namespace cifar_mpi::optim {

enum class LrScaling : std::uint8_t { none, linear, sqrt };

/// Staircase decay with optional warm-up.
struct ScheduleSpec {
  double base_rate = 0.1;
  double decay_factor = 0.1;  ///< rate ×= factor at every boundary
  double epochs_per_decay = 350.0;
  double warmup_epochs = 0.0;  ///< linear from rate/steps to rate
  LrScaling scaling = LrScaling::none;
  std::uint64_t samples = 50000;        ///< N of an epoch
  std::uint64_t global_batch = 128;     ///< G; the decay boundary counts steps of the *global* batch
  std::uint64_t reference_batch = 128;  ///< the batch base_rate was chosen for; scaling is by G / reference
};

/// Throws Error{usage} naming the option when a value makes no sense.
void check(const ScheduleSpec& spec);

/// Finds the numbers of a RateRule from what a user says: rate(t) = base · scale · warmup(t) · factor^floor(t / decay_steps), where
///   - decay_steps = floor(N/G · epochs_per_decay), at least 1
///   - warmup(t) = min((t + 1) / warmup_steps, 1), warmup_steps = floor(N/G · warmup_epochs)
///
/// Source: the TensorFlow CIFAR-10 tutorial (`exponential_decay`, staircase), with the global batch in
/// decay_steps; the warm-up is not the tutorial's.
class Schedule {
 public:
  /// Throws what `check` throws, and also where the scaled rate is none.
  explicit Schedule(const ScheduleSpec& spec);
  /// The rate of step t, counted from 0; the drop takes effect in step decay_steps itself.
  double rate(std::uint64_t step) const;
  /// The steps between two drops; at least 1.
  std::uint64_t decay_steps() const { return rule_.decay_steps; }
  std::uint64_t warmup_steps() const { return rule_.warmup_steps; }
  /// For where a Schedule cannot go.
  const RateRule& rule() const { return rule_; }
  /// The rule in one line, for the log and the checkpoint.
  std::string describe() const;

 private:
  ScheduleSpec spec_;
  RateRule rule_;
};

}  // namespace cifar_mpi::optim
