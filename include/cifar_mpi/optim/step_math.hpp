#pragma once

#include <cstdint>

/// What a step does to one weight, and the values that change from step to step. Plain functions: the host
/// and the kernels of a device compile the same ones.
namespace cifar_mpi::optim {

/// A schedule as plain numbers, see Schedule.
struct RateRule {
  double scaled_rate = 0.0;        ///< base · scale
  double factor = 1.0;             ///< the rate is multiplied by it at every drop
  std::uint64_t decay_steps = 1;   ///< between two drops, at least 1
  std::uint64_t warmup_steps = 0;  ///< in which the rate rises linearly
};

/// The rate of step t, counted from 0: scaled_rate · factor^floor(t / decay_steps), times (t + 1) / warmup_steps
/// before warmup_steps. `pow_of(x, y)` gives x^y in double.
template <class Pow>
constexpr double learning_rate(const RateRule& rule, std::uint64_t step, Pow pow_of) {
  const double rate = rule.scaled_rate * pow_of(rule.factor, static_cast<double>(step / rule.decay_steps));
  if (step >= rule.warmup_steps) return rate;
  return rate * (static_cast<double>(step) + 1.0) / static_cast<double>(rule.warmup_steps);
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

template <class Pow>
constexpr UpdateRates update_rates(const RateRule& rule, double decay, std::uint64_t step, Pow pow_of) {
  return {static_cast<float>(learning_rate(rule, step, pow_of)),
          static_cast<float>(1.0 - ema_decay(decay, step))};
}

/// w' = w − rate · (grad + decay · w)
constexpr float updated_weight(float w, float grad, float decay, float rate) {
  return w - rate * (grad + decay * w);
}

/// ema' = ema + share · (w' − ema)
constexpr float updated_ema(float ema, float w, float share) { return ema + share * (w - ema); }

}  // namespace cifar_mpi::optim
