#pragma once

#include <cstdint>

#include "cifar_mpi/optim/schedule.hpp"

/// What the optimizer does to one weight, and the values that change from step to step; runs on the host and
/// on the device.
namespace cifar_mpi::cuda {

/// A schedule as plain numbers: rate(t) = scaled_rate · factor^floor(t / decay_steps), times (t + 1) /
/// warmup_steps before warmup_steps; the same as optim::Schedule.
struct RateRule {
  double scaled_rate = 0.0;
  double factor = 1.0;
  std::uint64_t decay_steps = 1;
  std::uint64_t warmup_steps = 0;
};

/// `pow_of(x, y)` gives x^y in double.
template <class Pow>
constexpr double learning_rate(const RateRule& rule, std::uint64_t step, Pow pow_of) {
  const double rate = rule.scaled_rate * pow_of(rule.factor, static_cast<double>(step / rule.decay_steps));
  if (step >= rule.warmup_steps) return rate;
  return rate * (static_cast<double>(step) + 1.0) / static_cast<double>(rule.warmup_steps);
}

struct UpdateRates {
  float learning_rate = 0.0f;
  float ema_share = 0.0f;  ///< 1 − d
};

template <class Pow>
constexpr UpdateRates update_rates(const RateRule& rule, double ema_decay, std::uint64_t step, Pow pow_of) {
  return {static_cast<float>(learning_rate(rule, step, pow_of)),
          static_cast<float>(1.0 - optim::ema_decay(ema_decay, step))};
}

constexpr float updated_weight(float w, float grad, float decay, float rate) {
  return w - rate * (grad + decay * w);
}

constexpr float updated_ema(float ema, float w, float share) { return ema + share * (w - ema); }

/// Floats [begin, end) of the blocks, all of one parameter.
struct Segment {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  float decay = 0.0f;
};

/// What one launch takes by value, so that nothing lies in memory that a replay could lose.
struct Segments {
  static constexpr int kMost = 64;
  Segment items[kMost] = {};
  int count = 0;
};

/// The weight decay of float `i`.
constexpr float decay_of(const Segments& segments, std::uint64_t i) {
  for (int s = 0; s < segments.count; ++s) {
    if (i < segments.items[s].end) return segments.items[s].decay;
  }
  return 0.0f;
}

}  // namespace cifar_mpi::cuda
