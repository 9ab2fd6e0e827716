#include "cifar_mpi/optim/optimizer.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/optim/state.hpp"
#include "reference/reference.hpp"

namespace cifar_mpi::optim {
namespace {

constexpr OptimizerKind kKinds[] = {OptimizerKind::sgd, OptimizerKind::momentum, OptimizerKind::nesterov,
                                    OptimizerKind::adamw, OptimizerKind::muon};

struct ExactRoot {
  constexpr float sqrt(float x) const { return x == 9.0f ? 3.0f : -1.0f; }
};

TEST(Rules, AreAsWorkedByHand) {
  // All of it exact in binary. Weight 2, decay 1/4, rate 1/2, gradient 1: g + decay·w = 1.5.
  float s = 4.0f, q = 0.0f;
  UpdateRates rates;
  rates.momentum = 0.5f;
  EXPECT_EQ(SgdRule::apply(2.0f, 1.0f, 0.25f, 0.5f, rates, s, q, ExactRoot{}), 1.25f);
  EXPECT_EQ(s, 4.0f);
  // s' = 0.5·4 + 1.5 = 3.5, w' = 2 − 0.5·3.5
  EXPECT_EQ(MomentumRule::apply(2.0f, 1.0f, 0.25f, 0.5f, rates, s, q, ExactRoot{}), 0.25f);
  EXPECT_EQ(s, 3.5f);
  // s' = 0.5·4 + 1.5 = 3.5, w' = 2 − 0.5·(1.5 + 0.5·3.5)
  s = 4.0f;
  EXPECT_EQ(NesterovRule::apply(2.0f, 1.0f, 0.25f, 0.5f, rates, s, q, ExactRoot{}), 0.375f);
  EXPECT_EQ(s, 3.5f);
  EXPECT_EQ(q, 0.0f);
  // s' = 1 + 0.5·(3 − 1) = 2, q' = 1 + 0.25·(9 − 1) = 3, unbiased 4 and 9; w' = 2 − 0.25·(4/(3 + 1) + 0.5·2)
  rates.share1 = 0.5f, rates.share2 = 0.25f, rates.unbias1 = 2.0f, rates.unbias2 = 3.0f, rates.eps = 1.0f;
  s = q = 1.0f;
  EXPECT_EQ(AdamwRule::apply(2.0f, 3.0f, 0.5f, 0.25f, rates, s, q, ExactRoot{}), 1.5f);
  EXPECT_EQ(s, 2.0f);
  EXPECT_EQ(q, 3.0f);
}

/// The weights that the rule of `spec` gives in fp32, with the rates of a schedule.
std::vector<double> run(const OptimizerSpec& spec, const RateRule& rule, double weight, double decay,
                        const std::vector<double>& gradients) {
  std::vector<double> weights{weight};
  float w = static_cast<float>(weight), s = 0.0f, q = 0.0f;
  for (std::size_t t = 0; t < gradients.size(); ++t) {
    const UpdateRates rates = update_rates(rule, spec, {0.0}, t, HostMath{});
    w = with_rule(spec.kind, [&]<class Rule>(Rule) {
      return Rule::apply(w, static_cast<float>(gradients[t]), static_cast<float>(decay), rates.learning_rate,
                         rates, s, q, HostMath{});
    });
    weights.push_back(static_cast<double>(w));
  }
  return weights;
}

TEST(Rules, FollowTheSumsOverAllGradients) {
  constexpr int kSteps = 40;
  const RateRule rule{0.1, 0.5, 10, 4};
  std::vector<double> gradients, rates;
  for (int t = 0; t < kSteps; ++t) {
    gradients.push_back(static_cast<double>(static_cast<float>(std::sin(1.0 + t * t) + 0.25)));
    rates.push_back(learning_rate(rule, static_cast<std::uint64_t>(t), HostMath{}));
  }
  for (const OptimizerKind kind : kKinds) {
    const OptimizerSpec spec{.kind = kind, .momentum = 0.8, .beta1 = 0.7, .beta2 = 0.95, .eps = 1e-3};
    const std::vector<double> found = run(spec, rule, 1.5, 0.0625, gradients),
                              wanted = reference::trajectory(spec, 1.5, 0.0625, gradients, rates);
    // The accumulated value stays below 1.4/(1 − 0.8) = 7 and is rounded a few times per step; a rate of 0.1
    // carries that into the weight, and the errors of the steps add up. The shares 1 − beta and the momentum
    // are floats.
    for (std::size_t t = 0; t < found.size(); ++t) {
      EXPECT_NEAR(found[t], wanted[t], static_cast<double>(t) * 8.0 * 0x1.0p-24)
          << to_string(kind) << ' ' << t;
    }
  }
}

TEST(Rules, ReachTheirClosedForms) {
  // With a constant gradient of 1, momentum converges to 1/(1 − m) steps' worth; adamw's unbiased moments are
  // 1 from the first step on, so each step is one rate for any betas.
  const RateRule rule{0.25, 1.0, 1, 0};
  const std::vector<double> ones(200, 1.0);
  const auto last_move = [&](const OptimizerSpec& spec) {
    const std::vector<double> weights = run(spec, rule, 0.0, 0.0, ones);
    return weights[199] - weights[200];
  };
  constexpr double kRounding = 400.0 * 0x1.0p-24 * 100.0;  // of weights up to 400 in size, their difference
  EXPECT_NEAR(last_move({.kind = OptimizerKind::momentum, .momentum = 0.75}), 1.0, kRounding);
  EXPECT_NEAR(last_move({.kind = OptimizerKind::nesterov, .momentum = 0.75}), 1.0, kRounding);
  const std::vector<double> adamw = run({.kind = OptimizerKind::adamw, .eps = 1e-30}, rule, 0.0, 0.0, ones);
  for (std::size_t t = 0; t < adamw.size(); ++t) {
    EXPECT_NEAR(adamw[t], -0.25 * static_cast<double>(t), 0x1.0p-24 * 50.0 * (1.0 + static_cast<double>(t)))
        << t;
  }
  // Without a gradient adamw's decay shrinks a weight by rate · decay in each step; nothing accumulates.
  const std::vector<double> shrunk =
      run({.kind = OptimizerKind::adamw}, rule, 1.0, 0.5, std::vector<double>(20, 0.0));
  EXPECT_NEAR(shrunk.back(), std::pow(1.0 - 0.125, 20), 20 * 2.0 * 0x1.0p-24);
}

TEST(Rules, LeaveZeroZero) {
  for (const OptimizerKind kind : kKinds) {
    const OptimizerSpec spec{.kind = kind, .eps = 1e-30};
    const std::vector<double> weights = run(spec, {0.5}, 0.0, 0.5, {0.0, 0.0});
    EXPECT_EQ(weights.back(), 0.0) << to_string(kind);
  }
}

TEST(ClipFactor, HoldsTheNorm) {
  EXPECT_EQ(clip_factor(1.0, 4.0), 0.25f);
  EXPECT_EQ(clip_factor(1.0, 1.0), 1.0f);
  EXPECT_EQ(clip_factor(1.0, 0.0), 1.0f);
  EXPECT_EQ(clip_factor(3.0, 2.0), 1.0f);
}

TEST(StateRows, AreWhatTheRulesKeep) {
  for (const OptimizerKind kind : kKinds) {
    int own = 0;
    for (const StateRow& row : state_rows(kind)) own += row.of_optimizer ? 1 : 0;
    const int kept = with_rule(kind, []<class Rule>(Rule) { return Rule::kStates; });
    EXPECT_EQ(own, kept) << to_string(kind);
    EXPECT_EQ(state_rows(kind).size(), static_cast<std::size_t>(2 + kept)) << to_string(kind);
    EXPECT_LE(static_cast<std::size_t>(kept), kMostOptimizerRows);
  }
}

TEST(Optimizer, IsFoundByItsName) {
  for (const OptimizerKind kind : kKinds) EXPECT_EQ(find_name<OptimizerKind>(to_string(kind)), kind);
  EXPECT_EQ(find_name<OptimizerKind>("lion"), std::nullopt);
  EXPECT_EQ(find_name<OptimizerKind>(""), std::nullopt);
}

TEST(Optimizer, DescribesItself) {
  EXPECT_EQ(describe(OptimizerSpec{}), "sgd");
  EXPECT_EQ(describe({.kind = OptimizerKind::momentum}), "momentum (0.9)");
  EXPECT_EQ(describe({.kind = OptimizerKind::nesterov, .momentum = 0.85}), "nesterov (momentum 0.85)");
  EXPECT_EQ(describe({.kind = OptimizerKind::muon, .bias_rate = 0.5}),
            "muon (momentum 0.9, muon-momentum 0.95, bias-lr 0.5, ends-lr lr, muon-normalize never)");
  EXPECT_EQ(describe({.kind = OptimizerKind::adamw}), "adamw (beta1 0.9, beta2 0.999, eps 1e-08)");
}

}  // namespace
}  // namespace cifar_mpi::optim
