#include "cifar_mpi/optim/schedule.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "cifar_mpi/base/error.hpp"
#include "support/errors.hpp"

namespace cifar_mpi::optim {
namespace {

constexpr double kEps = std::numeric_limits<double>::epsilon();

/// A handful of roundings: product of base, scale, warm-up and a power.
double close_to(double value) { return 8.0 * kEps * std::abs(value); }

TEST(Schedule, CountsTheTutorialsDecayStepsOverTheGlobalBatch) {
  EXPECT_EQ(Schedule({}).decay_steps(), 136718u);  // floor(50000/128 · 350) = floor(136718.75)
  EXPECT_EQ(Schedule({.global_batch = 1024}).decay_steps(), 17089u);
  EXPECT_EQ(Schedule({}).warmup_steps(), 0u);
}

TEST(Schedule, KeepsDecayStepsExactWhenTheBatchDoesNotDivideTheSamples) {
  // 350 epochs of 14 samples in batches of 10 are exactly 490 steps; (14/10)·350 is 489.99... in double.
  EXPECT_EQ(Schedule({.epochs_per_decay = 350.0, .samples = 14, .global_batch = 10}).decay_steps(), 490u);
}

TEST(Schedule, KeepsTheLastRateInTheTail) {
  ScheduleSpec spec{.samples = 1000,
                    .global_batch = 100,
                    .kind = ScheduleKind::linear,
                    .final_share = 0.25,
                    .total_steps = 50,
                    .tail_epochs = 1.25};  // 12 steps and a half
  spec.base_rate = 1.0;
  const Schedule schedule(spec);
  EXPECT_EQ(schedule.tail_from(), 38u);
  EXPECT_EQ(schedule.rate(0), 1.0);
  EXPECT_EQ(schedule.rate(19), 0.625);
  for (const std::uint64_t step : {38, 39, 49}) EXPECT_EQ(schedule.rate(step), 0.25) << step;
  EXPECT_TRUE(schedule.on_slope(37));
  EXPECT_TRUE(schedule.on_slope(38));
  EXPECT_FALSE(schedule.on_slope(39));
  EXPECT_TRUE(contains(schedule.describe(), "to 0.25 at step 38 and for 12 steps more"));
  spec.tail_epochs = 0.0;
  EXPECT_EQ(Schedule(spec).tail_from(), 50u);
  for (const double all : {5.0, 6.0}) {
    spec.tail_epochs = all;
    EXPECT_THROW(Schedule{spec}, Error) << all;
  }
}

TEST(Schedule, HasAtLeastOneStepBetweenDrops) {
  EXPECT_EQ(Schedule({.epochs_per_decay = 0.001, .samples = 100, .global_batch = 100}).decay_steps(), 1u);
}

TEST(Schedule, DropsExactlyAtEveryBoundary) {
  const Schedule schedule(
      {.base_rate = 0.1, .decay_factor = 0.1, .epochs_per_decay = 2.0, .samples = 1000, .global_batch = 100});
  ASSERT_EQ(schedule.decay_steps(), 20u);
  EXPECT_EQ(schedule.rate(0), 0.1);
  EXPECT_EQ(schedule.rate(19), 0.1);
  EXPECT_NEAR(schedule.rate(20), 0.01, close_to(0.01));
  EXPECT_NEAR(schedule.rate(39), 0.01, close_to(0.01));
  EXPECT_NEAR(schedule.rate(40), 0.001, close_to(0.001));
  EXPECT_NEAR(schedule.rate(20 * 7), 1e-8, close_to(1e-8));
}

TEST(Schedule, DecayFactorOneNeverDrops) {
  const Schedule schedule({.decay_factor = 1.0, .epochs_per_decay = 1.0});
  EXPECT_EQ(schedule.rate(123456789), 0.1);
}

TEST(Schedule, WarmsUpLinearlyFromOneShareToTheWholeRate) {
  const Schedule schedule({.base_rate = 0.4, .warmup_epochs = 0.5, .samples = 1000, .global_batch = 100});
  ASSERT_EQ(schedule.warmup_steps(), 5u);
  for (std::uint64_t step = 0; step < 5; ++step) {
    const double expected = 0.4 * (static_cast<double>(step) + 1.0) / 5.0;
    EXPECT_NEAR(schedule.rate(step), expected, close_to(expected)) << "step " << step;
  }
  EXPECT_EQ(schedule.rate(5), 0.4);
}

TEST(Schedule, DecaysInsideTheWarmUpToo) {
  const Schedule schedule({.base_rate = 1.0,
                           .decay_factor = 0.5,
                           .epochs_per_decay = 1.0,
                           .warmup_epochs = 2.0,
                           .samples = 40,
                           .global_batch = 10});
  ASSERT_EQ(schedule.warmup_steps(), 8u);
  EXPECT_NEAR(schedule.rate(3), 4.0 / 8.0, close_to(0.5));
  EXPECT_NEAR(schedule.rate(4), 0.5 * 5.0 / 8.0, close_to(0.3125));
}

TEST(Schedule, ScalesTheRateWithTheGlobalBatch) {
  ScheduleSpec spec{.base_rate = 0.1, .global_batch = 512, .reference_batch = 128};
  EXPECT_EQ(Schedule(spec).rate(0), 0.1);
  spec.scaling = LrScaling::linear;
  EXPECT_NEAR(Schedule(spec).rate(0), 0.4, close_to(0.4));
  spec.scaling = LrScaling::sqrt;
  EXPECT_NEAR(Schedule(spec).rate(0), 0.2, close_to(0.2));
  spec.global_batch = 32;  // smaller than the reference: scales down
  EXPECT_NEAR(Schedule(spec).rate(0), 0.05, close_to(0.05));
}

TEST(Schedule, FollowsTheSameRateOverSamplesForEveryGlobalBatch) {
  // Without scaling the rate is a function of the samples seen, up to the rounding of one step.
  for (const std::uint64_t batch : {100u, 200u, 500u}) {
    const Schedule schedule({.epochs_per_decay = 3.0, .samples = 1000, .global_batch = batch});
    EXPECT_EQ(schedule.decay_steps() * batch, 3000u) << "global batch " << batch;
  }
}

/// Ten steps an epoch, and a rate of 2.
ScheduleSpec spec_of(ScheduleKind kind, std::uint64_t total_steps, double warmup_epochs = 0.0) {
  return {.base_rate = 2.0,
          .warmup_epochs = warmup_epochs,
          .samples = 1000,
          .global_batch = 100,
          .kind = kind,
          .total_steps = total_steps};
}

TEST(Schedule, DropsAtFractionsOfTheRun) {
  // He et al.: a tenth at 32000 and at 48000 of 64000 steps.
  ScheduleSpec spec = spec_of(ScheduleKind::steps, 64000);
  spec.decay_at = {0.5, 0.75};
  const Schedule he(spec);
  EXPECT_EQ(he.rate(0), 2.0);
  EXPECT_EQ(he.rate(31999), 2.0);
  EXPECT_NEAR(he.rate(32000), 0.2, close_to(0.2));
  EXPECT_NEAR(he.rate(47999), 0.2, close_to(0.2));
  EXPECT_NEAR(he.rate(48000), 0.02, close_to(0.02));
  EXPECT_NEAR(he.rate(64000), 0.02, close_to(0.02));
  // 0.29 · 100 is 28.999999999999996 in double.
  spec = spec_of(ScheduleKind::steps, 100, 0.4);
  spec.decay_at = {0.29};
  spec.decay_factor = 0.5;
  const Schedule rounded(spec);
  EXPECT_EQ(rounded.rate(28), 2.0);
  EXPECT_EQ(rounded.rate(29), 1.0);
  EXPECT_EQ(rounded.rate(1), 1.0) << "the second of four steps of warm-up";
}

TEST(Schedule, FallsInAStraightLineToTheEndOfTheRun) {
  ScheduleSpec spec = spec_of(ScheduleKind::linear, 50, 1.0);
  const Schedule to_nothing(spec);
  ASSERT_EQ(to_nothing.warmup_steps(), 10u);
  EXPECT_NEAR(to_nothing.rate(0), 0.2, close_to(0.2));
  EXPECT_EQ(to_nothing.rate(9), 2.0);
  for (std::uint64_t t = 10; t <= 50; ++t) {
    const double wanted = 2.0 * static_cast<double>(50 - t) / 40.0;
    EXPECT_NEAR(to_nothing.rate(t), wanted, close_to(2.0)) << t;
  }
  EXPECT_GT(to_nothing.rate(49), 0.04) << "the last step still moves";
  EXPECT_EQ(to_nothing.rate(51), 0.0);
  spec.final_share = 0.25;
  const Schedule to_a_quarter(spec);
  EXPECT_EQ(to_a_quarter.rate(10), 2.0);
  EXPECT_NEAR(to_a_quarter.rate(30), 1.25, close_to(1.25));
  EXPECT_NEAR(to_a_quarter.rate(50), 0.5, close_to(0.5));
}

TEST(Schedule, FallsByHalfACosine) {
  ScheduleSpec spec = spec_of(ScheduleKind::cosine, 70, 1.0);
  const Schedule to_nothing(spec);
  // Of the 60 steps after the warm-up: 0, 1/3, 1/2, 2/3 and all, where the cosine is 1, 1/2, 0, -1/2 and -1.
  EXPECT_EQ(to_nothing.rate(10), 2.0);
  EXPECT_NEAR(to_nothing.rate(30), 1.5, close_to(2.0));
  EXPECT_NEAR(to_nothing.rate(40), 1.0, close_to(2.0));
  EXPECT_NEAR(to_nothing.rate(50), 0.5, close_to(2.0));
  EXPECT_NEAR(to_nothing.rate(70), 0.0, close_to(2.0));
  spec.final_share = 0.5;
  EXPECT_NEAR(Schedule(spec).rate(40), 1.5, close_to(2.0));
  EXPECT_NEAR(Schedule(spec).rate(70), 1.0, close_to(2.0));
}

TEST(Schedule, GoesUpAndDownInOneCycle) {
  ScheduleSpec spec = spec_of(ScheduleKind::one_cycle, 50, 2.0);
  spec.initial_share = 0.25;
  spec.final_share = 0.1;
  const Schedule schedule(spec);
  EXPECT_NEAR(schedule.rate(0), 0.5, close_to(0.5));
  EXPECT_NEAR(schedule.rate(10), 1.25, close_to(1.25));
  EXPECT_EQ(schedule.rate(20), 2.0);
  EXPECT_NEAR(schedule.rate(35), 1.1, close_to(1.1));
  EXPECT_NEAR(schedule.rate(50), 0.2, close_to(2.0));
}

TEST(Schedule, KnowsItsSlopes) {
  const auto slopes = [](const ScheduleSpec& spec, std::uint64_t steps) {
    const Schedule schedule(spec);
    std::string text;
    for (std::uint64_t t = 0; t < steps; ++t) text += schedule.on_slope(t) ? '/' : '-';
    return text;
  };
  EXPECT_EQ(slopes(spec_of(ScheduleKind::staircase, 8, 0.4), 8), "-//-----");
  EXPECT_EQ(slopes(spec_of(ScheduleKind::staircase, 8), 8), "--------");
  EXPECT_EQ(slopes(spec_of(ScheduleKind::linear, 8, 0.4), 8), "-//--///");
  EXPECT_EQ(slopes(spec_of(ScheduleKind::cosine, 8), 8), "-///////");
  EXPECT_EQ(slopes(spec_of(ScheduleKind::one_cycle, 8, 0.4), 8), "-///-///");
}

TEST(Schedule, DescribesItsRuleInOneLine) {
  EXPECT_EQ(Schedule({}).describe(),
            "lr 0.1, x0.1 every 136718 steps (350 epochs of 50000 / global batch 128), no warm-up");
  EXPECT_EQ(Schedule({.warmup_epochs = 5.0, .scaling = LrScaling::linear, .global_batch = 512}).describe(),
            "lr 0.1 (linear 512/128 = 0.4), x0.1 every 34179 steps (350 epochs of 50000 / global batch 512), "
            "warm-up over 488 steps");
  ScheduleSpec spec = spec_of(ScheduleKind::steps, 64000);
  spec.decay_at = {0.5, 0.75};
  EXPECT_EQ(Schedule(spec).describe(), "lr 2, x0.1 at steps 32000, 48000 of 64000, no warm-up");
  EXPECT_EQ(Schedule(spec_of(ScheduleKind::linear, 70, 1.0)).describe(),
            "lr 2, linear to 0 at step 70, warm-up over 10 steps");
  EXPECT_EQ(Schedule(spec_of(ScheduleKind::cosine, 70)).describe(),
            "lr 2, by half a cosine to 0 at step 70, no warm-up");
  EXPECT_EQ(Schedule(spec_of(ScheduleKind::one_cycle, 70, 1.0)).describe(),
            "lr 2, one cycle: up from 0.08 to step 10, then linear to 0 at step 70");
}

void expect_refused(const std::function<void(ScheduleSpec&)>& spoil, const std::string& option) {
  ScheduleSpec spec;
  spoil(spec);
  expect_error(ErrorKind::usage, {option}, [&] { const Schedule schedule(spec); });
}

TEST(Schedule, RefusesNonsenseAndNamesTheOption) {
  expect_refused(
      [](ScheduleSpec& s) { s.base_rate = 1e308, s.scaling = LrScaling::linear, s.global_batch = 1280; },
      "--lr must be a finite rate above 0 when it is scaled");
  expect_refused([](ScheduleSpec& s) { s.reference_batch = 0; }, "--lr-scaling");
  expect_refused([](ScheduleSpec& s) { s.global_batch = 0; }, "global batch");
  expect_refused([](ScheduleSpec& s) { s.samples = 0; }, "training set");
  expect_refused(
      [](ScheduleSpec& s) {
        s.kind = ScheduleKind::cosine, s.warmup_epochs = 1.0, s.samples = 1000, s.global_batch = 100,
        s.total_steps = 10;
      },
      "--warmup-epochs 1 takes 10 steps, but the run has 10, and --schedule cosine needs more; warm up for "
      "less or "
      "train longer");
  expect_refused(
      [](ScheduleSpec& s) {
        s.kind = ScheduleKind::linear, s.tail_epochs = 0.5, s.samples = 1000, s.global_batch = 100,
        s.total_steps = 5;
      },
      "--tail-epochs 0.5 takes 5 steps, but the run has 5, and --schedule linear needs more; train longer, "
      "or give "
      "--tail-epochs off");
  expect_refused([](ScheduleSpec& s) { s.kind = ScheduleKind::one_cycle, s.total_steps = 100; },
                 "--warmup-epochs must be above 0 with --schedule one-cycle");
}

TEST(Schedule, RefusesBoundariesThatAreNone) {
  const auto at = [](std::vector<double> fractions) {
    return [fractions](ScheduleSpec& s) {
      s.kind = ScheduleKind::steps, s.total_steps = 100, s.decay_at = fractions;
    };
  };
  expect_refused(at({}), "--schedule steps has no boundaries: --decay-at must hold fractions of the run");
  expect_refused(at({0.5, 1.0}), "each above 0 and below 1, not 1");
  expect_refused(at({0.0}), "each above 0 and below 1, not 0");
  expect_refused(at({std::numeric_limits<double>::quiet_NaN()}), "each above 0 and below 1, not nan");
  expect_refused(at({0.75, 0.5}), "each larger than the one before: 0.5 follows 0.75");
  expect_refused(at({0.5, 0.5}), "each larger than the one before: 0.5 follows 0.5");
  std::vector<double> many;
  for (int i = 1; i <= RateRule::kMostDrops + 1; ++i) many.push_back(i / 20.0);
  expect_refused(at(many), "at most 16 of them, not 17");
  many.pop_back();
  ScheduleSpec most;
  at(many)(most);
  EXPECT_NO_THROW(Schedule{most});
}

TEST(Schedule, IsItsRule) {
  const Schedule schedule({.epochs_per_decay = 0.5,
                           .warmup_epochs = 0.2,
                           .scaling = LrScaling::sqrt,
                           .samples = 1000,
                           .global_batch = 7});
  ASSERT_GT(schedule.rule().warmup_steps, 1u);
  for (std::uint64_t step = 0; step < 500; ++step) {
    const UpdateRates rates = update_rates(schedule.rule(), {}, {0.999}, step, HostMath{});
    EXPECT_EQ(rates.learning_rate, static_cast<float>(schedule.rate(step))) << step;
    EXPECT_EQ(rates.ema_share, static_cast<float>(1.0 - ema_decay(0.999, step))) << step;
  }
}

TEST(StepMath, MovesAWeightAndItsAverage) {
  // All of it exact in binary: w − r(g + dw) = 2 − 0.5(1 + 0.25·2) and e + s(w' − e) = −1 + 0.125(1.25 + 1).
  static_assert(updated_weight(2.0f, 1.0f, 0.25f, 0.5f) == 1.25f);
  static_assert(updated_ema(-1.0f, 1.25f, 0.125f) == -0.71875f);
  struct NoDecay {
    constexpr double pow(double, double) const { return 1.0; }
    constexpr double cos(double) const { return 1.0; }
  };
  static_assert(learning_rate({3.0, 0.5, 10, 4}, 1, NoDecay{}) == 1.5);
}

TEST(EmaDecay, StartsAtOneTenthAndReachesItsLimit) {
  EXPECT_EQ(ema_decay(0.9999, 0), 0.1);
  EXPECT_EQ(ema_decay(0.9999, 8), 0.5);
  // (1+t)/(10+t) reaches 0.9999 at t = 89990.
  EXPECT_LT(ema_decay(0.9999, 89989), 0.9999);
  EXPECT_EQ(ema_decay(0.9999, 89991), 0.9999);
  EXPECT_EQ(ema_decay(0.9999, std::uint64_t{1} << 40), 0.9999);
  EXPECT_EQ(ema_decay(0.0, 5), 0.0);
}

TEST(EmaDecay, ApproachesAConstantAsItsClosedFormSays) {
  // While warm, the product of n decays is n!·9!/(n+9)! = 1/C(n+9, 9), so ema = p − (p − ema_0)/C(n+9, 9).
  constexpr double param = 3.0, start = -1.0;
  constexpr int steps = 30;
  double ema = start, binomial = 1.0;
  for (int t = 0; t < steps; ++t)
    ema += (1.0 - ema_decay(0.9999, static_cast<std::uint64_t>(t))) * (param - ema);
  for (int i = 1; i <= 9; ++i) binomial = binomial * (steps + i) / i;
  EXPECT_NEAR(ema, param - (param - start) / binomial, 4.0 * kEps * steps);
}

TEST(EmaDecay, ForgetsGeometricallyOnceItsLimitHolds) {
  constexpr std::uint64_t start = 1000;  // past the warm phase of a limit of 0.9
  double ema = 1.0;
  for (std::uint64_t t = start; t < start + 50; ++t) ema += (1.0 - ema_decay(0.9, t)) * (0.0 - ema);
  EXPECT_NEAR(ema, std::pow(0.9, 50), 4.0 * kEps * 50);
}

}  // namespace
}  // namespace cifar_mpi::optim
