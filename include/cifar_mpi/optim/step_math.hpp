#pragma once

#include <cmath>
#include <cstdint>

/// What a step does to one weight, and the values that change from step to step. Plain functions: the host
/// and the kernels of a device compile the same ones.
namespace cifar_mpi::optim {

/// How the rate goes on from its base, see Schedule.
enum class ScheduleKind : std::uint8_t { staircase, steps, linear, cosine, one_cycle };

/// A schedule as plain numbers, see Schedule. What its kind does not need is not looked at.
struct RateRule {
  static constexpr int kMostDrops = 16;
  double scaled_rate = 0.0;        ///< base · scale
  double factor = 1.0;             ///< the rate is multiplied by it at every drop
  std::uint64_t decay_steps = 1;   ///< staircase: between two drops, at least 1
  std::uint64_t warmup_steps = 0;  ///< in which the rate rises linearly
  ScheduleKind kind = ScheduleKind::staircase;
  std::uint64_t total_steps = 1;  ///< linear, cosine, one_cycle: more than warmup_steps
  double initial_share = 0.0;     ///< one_cycle: of the scaled rate, in step 0
  double final_share = 0.0;       ///< linear, cosine, one_cycle: of the scaled rate, in step total_steps
  int drops = 0;                  ///< steps: how many of drop_at count
  std::uint64_t drop_at[kMostDrops] = {};  ///< ascending
};

/// The mathematics of the host, for where a device has its own.
struct HostMath {
  double pow(double x, double y) const { return std::pow(x, y); }
  double cos(double x) const { return std::cos(x); }
  float sqrt(float x) const { return std::sqrt(x); }
};

/// What is done of the way from the end of the warm-up to the end of the run, from 0 to 1.
constexpr double fallen_part(const RateRule& rule, std::uint64_t step) {
  if (step <= rule.warmup_steps) return 0.0;
  if (step >= rule.total_steps) return 1.0;
  return static_cast<double>(step - rule.warmup_steps) /
         static_cast<double>(rule.total_steps - rule.warmup_steps);
}

/// What the schedule leaves of the scaled rate in step t, the warm-up apart; p is fallen_part, s final_share:
///   staircase          factor^floor(t / decay_steps)
///   steps              factor^n, n of drop_at being at most t
///   linear, one_cycle  1 − (1 − s)·p
///   cosine             s + (1 − s)·½(1 + cos πp)
template <class Math>
constexpr double remaining_share(const RateRule& rule, std::uint64_t step, Math math) {
  constexpr double kPi = 3.14159265358979323846;
  switch (rule.kind) {
    case ScheduleKind::staircase:
      return math.pow(rule.factor, static_cast<double>(step / rule.decay_steps));
    case ScheduleKind::steps: {
      int passed = 0;
      while (passed < rule.drops && rule.drop_at[passed] <= step) ++passed;
      return math.pow(rule.factor, static_cast<double>(passed));
    }
    case ScheduleKind::linear:
    case ScheduleKind::one_cycle:
      return 1.0 - (1.0 - rule.final_share) * fallen_part(rule, step);
    case ScheduleKind::cosine:
      return rule.final_share +
             (1.0 - rule.final_share) * 0.5 * (1.0 + math.cos(kPi * fallen_part(rule, step)));
  }
  return 1.0;
}

/// The rate of step t, counted from 0: scaled_rate · remaining_share. Before warmup_steps it is multiplied by
/// (t + 1) / warmup_steps, or, where one_cycle, by initial_share + (1 − initial_share) · t / warmup_steps.
template <class Math>
constexpr double learning_rate(const RateRule& rule, std::uint64_t step, Math math) {
  const double rate = rule.scaled_rate * remaining_share(rule, step, math);
  if (step >= rule.warmup_steps) return rate;
  const double t = static_cast<double>(step), length = static_cast<double>(rule.warmup_steps);
  if (rule.kind == ScheduleKind::one_cycle) {
    return rate * (rule.initial_share + (1.0 - rule.initial_share) * t / length);
  }
  return rate * (t + 1.0) / length;
}

/// Decay of the exponential moving average in step t (from 0, before the update): min(decay, (1+t)/(10+t)),
/// TensorFlow's `ExponentialMovingAverage(decay, num_updates)`. ema ← ema + (1 − d)·(param − ema).
constexpr double ema_decay(double decay, std::uint64_t step) {
  const double warm = (1.0 + static_cast<double>(step)) / (10.0 + static_cast<double>(step));
  return decay < warm ? decay : warm;
}

/// What all weights have in common in one step.
struct UpdateRates {
  float learning_rate = 0.0f;
  float ema_share = 0.0f;  ///< 1 − d
};

template <class Math>
constexpr UpdateRates update_rates(const RateRule& rule, double decay, std::uint64_t step, Math math) {
  return {static_cast<float>(learning_rate(rule, step, math)),
          static_cast<float>(1.0 - ema_decay(decay, step))};
}

/// w' = w − rate · (grad + decay · w)
constexpr float updated_weight(float w, float grad, float decay, float rate) {
  return w - rate * (grad + decay * w);
}

/// ema' = ema + share · (w' − ema)
constexpr float updated_ema(float ema, float w, float share) { return ema + share * (w - ema); }

}  // namespace cifar_mpi::optim
