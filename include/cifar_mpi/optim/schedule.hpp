#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cifar_mpi/base/names.hpp"
#include "cifar_mpi/optim/step_math.hpp"

/// Step → value functions, pure so that every rank and every device computes the same.
namespace cifar_mpi::optim {

enum class LrScaling : std::uint8_t { none, linear, sqrt };
constexpr auto names_of(LrScaling) {
  return std::to_array<Name<LrScaling>>(
      {{"none", LrScaling::none}, {"linear", LrScaling::linear}, {"sqrt", LrScaling::sqrt}});
}

/// The user's settings of the learning rate; the defaults are the tutorial's.
struct ScheduleSpec {
  double base_rate = 0.1;
  double decay_factor = 0.1;        ///< staircase, steps: rate ×= factor at every boundary
  double epochs_per_decay = 350.0;  ///< staircase
  double warmup_epochs = 0.0;       ///< linear from rate/steps to rate
  LrScaling scaling = LrScaling::none;
  std::uint64_t samples = 50000;        ///< N of an epoch
  std::uint64_t global_batch = 128;     ///< G; the decay boundary counts steps of the *global* batch
  std::uint64_t reference_batch = 128;  ///< the batch base_rate was chosen for; scaling is by G / reference
  ScheduleKind kind = ScheduleKind::staircase;
  std::vector<double> decay_at = {};  ///< steps: the boundaries as fractions of the run, ascending
  double initial_share = 0.04;        ///< one_cycle: of the rate, where it begins to rise
  double final_share = 0.0;           ///< linear, cosine, one_cycle: of the rate, where the run ends
  std::uint64_t total_steps = 0;      ///< T of the run; all but staircase need it
  double tail_epochs = 0.0;           ///< linear, cosine, one_cycle: at the end, at the rate of final_share
};

/// Whether the rate of a step depends on the run's length; a run of another length is then another run.
constexpr bool depends_on_length(ScheduleKind kind) { return kind != ScheduleKind::staircase; }

/// Throws Error{usage} naming the option when the values do not make a schedule: boundaries, or a missing warm-up. The
/// option's row checks the range of a single value. Does not check the length of the run or what depends on it.
void check(const ScheduleSpec& spec);

/// Derives a RateRule from a user's settings; T is the number of steps of the run:
///
///   staircase  base · scale · warmup(t) · factor^floor(t / decay_steps), decay_steps = floor(N/G ·
///              epochs_per_decay), at least 1. The TensorFlow CIFAR-10 tutorial (`exponential_decay`,
///              staircase), with the global batch in decay_steps.
///   steps      factor at each of T·decay_at, rounded to whole steps (He et al. 2016: at 1/2 and 3/4 of it)
///   linear     from the end of the warm-up straight to final_share at T
///   cosine     half a cosine instead (Loshchilov and Hutter 2017, without restarts)
///   one_cycle  straight up from initial_share to the rate, which step warmup_steps has, then straight to
///              final_share at T. Smith and Topin 2018 as OneCycleLR of PyTorch has it with anneal_strategy
///              "linear", whose div_factor of 25 is initial_share 0.04; the momentum stays as it is.
///
/// warmup(t) = min((t + 1) / warmup_steps, 1), warmup_steps = floor(N/G · warmup_epochs), for all but
/// one_cycle. No step of a run has the rate of T: the last step is T − 1. With a tail, T is the step where the tail begins, and
/// all its steps have that rate.
class Schedule {
 public:
  /// Throws what `check` throws, also if the scaled rate is not a finite number above 0, or if the warm-up and the tail
  /// leave no steps for a schedule that depends on the run's length.
  explicit Schedule(const ScheduleSpec& spec);
  /// The rate of step t, counted from 0; a drop takes effect in the step of the boundary itself.
  double rate(std::uint64_t step) const;
  /// Whether step t lies on a slope, where each step has another rate than the one before; not its ends.
  bool on_slope(std::uint64_t step) const;
  /// The steps between two drops of a staircase; at least 1.
  std::uint64_t decay_steps() const { return rule_.decay_steps; }
  std::uint64_t warmup_steps() const { return rule_.warmup_steps; }
  /// The first step of the tail, floor(N/G · tail_epochs) steps before the end of the run.
  std::uint64_t tail_from() const { return rule_.total_steps; }
  /// The numbers alone, for code that cannot use a Schedule.
  const RateRule& rule() const { return rule_; }
  /// The rule in one line, for the log and the checkpoint.
  std::string describe() const;

 private:
  ScheduleSpec spec_;
  RateRule rule_;
};

}  // namespace cifar_mpi::optim
