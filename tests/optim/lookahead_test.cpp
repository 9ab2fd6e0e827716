#include "cifar_mpi/optim/lookahead.hpp"

#include <gtest/gtest.h>

#include "cifar_mpi/optim/step_math.hpp"

namespace cifar_mpi::optim {
namespace {

TEST(PullAfter, IsDueEverySoManyStepsAndEndsWithAReturn) {
  const Lookahead rule{.every = 4, .from = 0, .until = 10, .keep = 0.5, .power = 3.0};
  for (std::uint64_t step = 0; step < 14; ++step) {
    const Pull pull = pull_after(rule, step, HostMath{});
    EXPECT_FALSE(pull.begins) << "slow weights that begin with the run are there already";
    EXPECT_EQ(pull.pulls, step == 3 || step == 7 || step == 9) << step;
  }
  EXPECT_EQ(pull_after(rule, 3, HostMath{}).share, static_cast<float>(1.0 - 0.5 * 0.064));
  EXPECT_EQ(pull_after(rule, 7, HostMath{}).share, static_cast<float>(1.0 - 0.5 * 0.512));
  EXPECT_EQ(pull_after(rule, 9, HostMath{}).share, 0.0f);
  const Pull last =
      pull_after({.every = 5, .from = 0, .until = 10, .keep = 0.5, .power = 3.0}, 9, HostMath{});
  EXPECT_TRUE(last.pulls);
  EXPECT_EQ(last.share, 0.5f) << "a pull that is due at the end is made";
  EXPECT_FALSE(pull_after({}, 0, HostMath{}).pulls);
}

TEST(PullAfter, CountsFromTheStepWhereTheSlowWeightsBegin) {
  const Lookahead rule{.every = 4, .from = 2, .until = 10, .keep = 0.7, .power = 0.0};
  for (std::uint64_t step = 0; step < 14; ++step) {
    const Pull pull = pull_after(rule, step, HostMath{});
    EXPECT_EQ(pull.begins, step == 1) << step;
    EXPECT_EQ(pull.pulls, step == 5 || step == 9) << step;
    if (pull.pulls) {
      EXPECT_FLOAT_EQ(pull.share, 0.3f) << "with the power 0 the share is the same all the time";
    }
  }
}

TEST(Apply, MovesTheSlowWeightTheWeightAndItsAverage) {
  float w = 3.0f, slow = 1.0f, ema = 10.0f;
  apply({}, 0.5f, w, slow, ema);
  EXPECT_EQ(w, 3.0f);
  EXPECT_EQ(slow, 1.0f);
  apply({.begins = false, .pulls = true, .share = 0.25f}, 0.5f, w, slow, ema);
  EXPECT_EQ(slow, 1.5f);
  EXPECT_EQ(w, 1.5f);
  EXPECT_EQ(ema, 9.25f) << "as if the step had put the new weight into the average";
  w = 4.0f;
  apply({.begins = true}, 0.5f, w, slow, ema);
  EXPECT_EQ(slow, 4.0f);
  EXPECT_EQ(w, 4.0f);
  EXPECT_EQ(ema, 9.25f);
}

TEST(AverageRule, IsTheMeanOfTheTail) {
  const AverageRule rule{.decay = 0.9, .mean_from = 100};
  EXPECT_EQ(ema_decay(rule, 99), ema_decay(0.9, 99));
  double average = 1e6, sum = 0.0;
  for (std::uint64_t n = 0; n < 7; ++n) {
    const double w = static_cast<double>(n * n);
    sum += w;
    const double decay = ema_decay(rule, 100 + n);
    average += (1.0 - decay) * (w - average);
    EXPECT_NEAR(average, sum / static_cast<double>(n + 1), 1e-9) << n;
  }
  EXPECT_EQ(ema_decay(rule, 100, 3), 0.0);
  EXPECT_DOUBLE_EQ(ema_decay(rule, 101, 3), 0.25) << "three more of then four steps";
}

}  // namespace
}  // namespace cifar_mpi::optim
