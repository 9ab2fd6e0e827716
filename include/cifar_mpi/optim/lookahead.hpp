#pragma once

#include <cstdint>

/// Slow weights, to which the weights return again and again. Plain functions: host and device compile the same ones.
namespace cifar_mpi::optim {

/// Lookahead of Zhang et al. 2019 ("Lookahead Optimizer: k steps forward, 1 step back"), with a share that changes as in
/// Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU", 2024. The slow weights φ begin as the weights w after `from`
/// steps. After t steps, from < t ≤ until, where `every` divides t − from:
///
///   φ' = φ + (1 − keep·(t/until)^power)·(w − φ), w' = φ'
///
/// and after `until` steps at the latest w' = φ. Running statistics are treated as weights; the optimizer keeps its state.
struct Lookahead {
  std::uint64_t every = 0;  ///< 0: no lookahead
  std::uint64_t from = 0;
  std::uint64_t until = 0;
  double keep = 0.0;
  double power = 0.0;
};

/// What a step does to the weights.
struct Pull {
  bool begins = false;  ///< φ' = w
  bool pulls = false;   ///< φ' = φ + share·(w − φ), w' = φ'
  float share = 0.0f;
};

/// The pull after step `step`, counted from 0.
template <class Math>
constexpr Pull pull_after(const Lookahead& rule, std::uint64_t step, Math math) {
  const std::uint64_t done = step + 1;
  Pull pull;
  if (rule.every == 0) return pull;
  pull.begins = done == rule.from;
  if (done <= rule.from || done > rule.until) return pull;
  const bool due = (done - rule.from) % rule.every == 0;
  pull.pulls = due || done == rule.until;
  if (!due) return pull;
  const double elapsed = static_cast<double>(done) / static_cast<double>(rule.until);
  pull.share = static_cast<float>(1.0 - rule.keep * math.pow(elapsed, rule.power));
  return pull;
}

/// One weight w, its φ, and the average that evaluation uses, into which the step has put w with the share `ema_share`.
constexpr void apply(const Pull& pull, float ema_share, float& w, float& slow, float& ema) {
  if (pull.begins) slow = w;
  if (!pull.pulls) return;
  slow = slow + pull.share * (w - slow);
  ema = ema + ema_share * (slow - w);
  w = slow;
}

}  // namespace cifar_mpi::optim
