#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "cifar_mpi/base/names.hpp"

/// The update of one weight, and the values that change from step to step. Plain functions: the host and the
/// kernels of a device compile the same ones.
namespace cifar_mpi::optim {

/// How the rate changes over a run, see Schedule.
enum class ScheduleKind : std::uint8_t { staircase, steps, linear, cosine, one_cycle };
constexpr auto names_of(ScheduleKind) {
  return std::to_array<Name<ScheduleKind>>({{"staircase", ScheduleKind::staircase},
                                            {"steps", ScheduleKind::steps},
                                            {"linear", ScheduleKind::linear},
                                            {"cosine", ScheduleKind::cosine},
                                            {"one-cycle", ScheduleKind::one_cycle}});
}

/// A schedule as plain numbers, see Schedule. Fields that its kind does not need are ignored.
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

/// The elapsed part of the time between the end of the warm-up and the end of the run, from 0 to 1.
constexpr double fallen_part(const RateRule& rule, std::uint64_t step) {
  if (step <= rule.warmup_steps) return 0.0;
  if (step >= rule.total_steps) return 1.0;
  return static_cast<double>(step - rule.warmup_steps) /
         static_cast<double>(rule.total_steps - rule.warmup_steps);
}

/// The factor of the scaled rate in step t, without warm-up; p is fallen_part, s final_share:
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
/// (t + 1) / warmup_steps, or, for one_cycle, by initial_share + (1 − initial_share) · t / warmup_steps.
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

/// The average of the weights that evaluation uses: an exponential one, and from step `mean_from` on the mean of the weights
/// after each of these steps.
struct AverageRule {
  double decay = 0.9999;
  std::uint64_t mean_from = ~std::uint64_t{0};
};
/// The decay of either in step t: with n of its steps before, a mean has n/(n + 1).
constexpr double ema_decay(const AverageRule& rule, std::uint64_t step) {
  if (step < rule.mean_from) return ema_decay(rule.decay, step);
  const auto before = static_cast<double>(step - rule.mean_from);
  return before / (before + 1.0);
}

/// The product of the decays of `steps` steps from `step` on; 1 for none.
constexpr double ema_decay(const AverageRule& rule, std::uint64_t step, int steps) {
  double left = 1.0;
  for (int i = 0; i < steps; ++i) left *= ema_decay(rule, step + static_cast<std::uint64_t>(i));
  return left;
}

/// The update rules; each is a class below.
enum class OptimizerKind : std::uint8_t { sgd, momentum, nesterov, adamw, muon };
constexpr auto names_of(OptimizerKind) {
  return std::to_array<Name<OptimizerKind>>({{"sgd", OptimizerKind::sgd},
                                             {"momentum", OptimizerKind::momentum},
                                             {"nesterov", OptimizerKind::nesterov},
                                             {"adamw", OptimizerKind::adamw},
                                             {"muon", OptimizerKind::muon}});
}

/// An optimizer and its numbers. Fields of other kinds are ignored.
struct OptimizerSpec {
  OptimizerKind kind = OptimizerKind::sgd;
  double momentum = 0.9;  ///< momentum, nesterov; muon: of all but the hidden matrices
  double beta1 = 0.9;     ///< adamw, as are the next two
  double beta2 = 0.999;
  double eps = 1e-8;
  double muon_momentum = 0.95;  ///< muon, as are the next: of the hidden matrices
  double bias_rate = 0.0;       ///< rate of biases and scales; 0: that of the hidden matrices
  double ends_rate = 0.0;       ///< rate of the weights of the first and the last layer; 0: the same
  int normalize_every = 0;      ///< steps between normalizations of the hidden matrices; 0: never
};

/// Values that all weights share in one step.
struct UpdateRates {
  float learning_rate = 0.0f;
  float ema_share = 0.0f;  ///< 1 − d
  float clip = 1.0f;       ///< factor of the gradient that clips it
  float momentum = 0.0f;
  float share1 = 0.0f, share2 = 0.0f;    ///< adamw: 1 − beta
  float unbias1 = 1.0f, unbias2 = 1.0f;  ///< adamw: 1 / (1 − beta^(t + 1)) in step t from 0
  float eps = 0.0f;
};

template <class Math>
constexpr UpdateRates update_rates(const RateRule& rule, const OptimizerSpec& optimizer,
                                   const AverageRule& average, std::uint64_t step, Math math,
                                   int average_steps = 1) {
  UpdateRates rates;
  rates.learning_rate = static_cast<float>(learning_rate(rule, step, math));
  rates.ema_share = static_cast<float>(1.0 - ema_decay(average, step, average_steps));
  rates.momentum = static_cast<float>(optimizer.momentum);
  if (optimizer.kind != OptimizerKind::adamw) return rates;
  const double steps = static_cast<double>(step) + 1.0;
  rates.share1 = static_cast<float>(1.0 - optimizer.beta1);
  rates.share2 = static_cast<float>(1.0 - optimizer.beta2);
  rates.unbias1 = static_cast<float>(1.0 / (1.0 - math.pow(optimizer.beta1, steps)));
  rates.unbias2 = static_cast<float>(1.0 / (1.0 - math.pow(optimizer.beta2, steps)));
  rates.eps = static_cast<float>(optimizer.eps);
  return rates;
}

/// The factor that limits a gradient of this norm to norm `limit` (Pascanu et al. 2013).
constexpr float clip_factor(double limit, double norm) {
  return norm > limit ? static_cast<float>(limit / norm) : 1.0f;
}

/// w' = w − rate · (grad + decay · w)
constexpr float updated_weight(float w, float grad, float decay, float rate) {
  return w - rate * (grad + decay * w);
}

/// A running statistic: old' = old + share · (batch − old), share = 1 − momentum.
constexpr float updated_running(float old, float batch, float share) { return old + share * (batch - old); }

/// A rule gives the new weight of (w, grad), with the weight decay and the rate of its parameter, and updates
/// the state of that weight: kStates floats, the first in `s`, the second in `q`. A weight stays zero if it,
/// grad and its state are zero.
struct SgdRule {
  static constexpr int kStates = 0;
  template <class Math>
  static constexpr float apply(float w, float grad, float decay, float rate, const UpdateRates&, float&,
                               float&, Math) {
    return updated_weight(w, grad, decay, rate);
  }
};

/// s' = momentum · s + (grad + decay · w), w' = w − rate · s'. PyTorch's SGD without dampening; a change of
/// the rate takes effect at once on all that s has accumulated.
struct MomentumRule {
  static constexpr int kStates = 1;
  template <class Math>
  static constexpr float apply(float w, float grad, float decay, float rate, const UpdateRates& rates,
                               float& s, float&, Math) {
    s = rates.momentum * s + (grad + decay * w);
    return w - rate * s;
  }
};

/// g = grad + decay · w, s' = momentum · s + g, w' = w − rate · (g + momentum · s'): PyTorch's form of it.
struct NesterovRule {
  static constexpr int kStates = 1;
  template <class Math>
  static constexpr float apply(float w, float grad, float decay, float rate, const UpdateRates& rates,
                               float& s, float&, Math) {
    const float g = grad + decay * w;
    s = rates.momentum * s + g;
    return w - rate * (g + rates.momentum * s);
  }
};

/// s' = s + (1 − beta1)·(grad − s), q' = q + (1 − beta2)·(grad² − q), and with both divided by 1 − beta^(t+1)
/// w' = w − rate · (s'/(√q' + eps) + decay · w). Loshchilov and Hutter 2019: the decay is no part of the
/// gradient, nor of the loss; it is multiplied by the rate, as PyTorch has it.
struct AdamwRule {
  static constexpr int kStates = 2;
  template <class Math>
  static constexpr float apply(float w, float grad, float decay, float rate, const UpdateRates& rates,
                               float& s, float& q, Math math) {
    s = s + rates.share1 * (grad - s);
    q = q + rates.share2 * (grad * grad - q);
    const float move = (s * rates.unbias1) / (math.sqrt(q * rates.unbias2) + rates.eps);
    return w - rate * (move + decay * w);
  }
};

/// muon: the update of a hidden matrix, with `out` columns or rows for its outputs and `rest` for its inputs.
///
///   s' = momentum · s + G, X = G + momentum · s', X = X/(‖X‖ + eps), ‖·‖ the Frobenius norm
///   three times X = a·X + (b·A + c·A²)·X with A = XXᵀ, which draws all singular values near 1
///   w' = w − rate · (√max(1, out/rest) · X + decay · w)
///
/// Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"; the coefficients are theirs, and
/// three iterations instead of five are those of their CIFAR-10 speedruns. Of an X of norm 1, each iteration
/// multiplies a small singular value by a, and a value in [0.31, 1] ends in [0.68, 1.21].
struct NewtonSchulz {
  static constexpr int kIterations = 3;
  static constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;
  static constexpr double kEps = 1e-7;
};

/// √max(1, out/rest): a matrix with more outputs than inputs moves further.
template <class Math>
constexpr float matrix_scale(double out, double rest, Math math) {
  return out > rest ? math.sqrt(static_cast<float>(out / rest)) : 1.0f;
}

/// Whether muon normalizes the hidden matrices before the update of step t, counted from 0: W ← W · √out/‖W‖.
constexpr bool normalizes(const OptimizerSpec& spec, std::uint64_t step) {
  return spec.normalize_every > 0 && step % static_cast<std::uint64_t>(spec.normalize_every) == 0;
}

/// Whether Σ decay · ½w² is a part of the loss whose gradient the optimizer follows. With muon it is for all
/// but the hidden matrices.
constexpr bool decays_by_loss(OptimizerKind kind) { return kind != OptimizerKind::adamw; }

/// `use(rule)` with the rule of a kind; of muon, that of all but the hidden matrices.
template <class Use>
constexpr decltype(auto) with_rule(OptimizerKind kind, Use use) {
  switch (kind) {
    case OptimizerKind::momentum:
      return use(MomentumRule{});
    case OptimizerKind::nesterov:
    case OptimizerKind::muon:
      return use(NesterovRule{});
    case OptimizerKind::adamw:
      return use(AdamwRule{});
    case OptimizerKind::sgd:
      break;
  }
  return use(SgdRule{});
}

/// ema' = ema + share · (w' − ema)
constexpr float updated_ema(float ema, float w, float share) { return ema + share * (w - ema); }

}  // namespace cifar_mpi::optim
