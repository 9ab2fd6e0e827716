#include "cifar_mpi/optim/local_steps.hpp"

#include <gtest/gtest.h>

#include "cifar_mpi/base/error.hpp"

namespace cifar_mpi::optim {
namespace {

/// Two workers move a weight from 1 to 0.5 and to 0.7; the outer step sees 0.3 of each.
TEST(LocalSteps, MoveByTheOuterRuleAsWorkedOutByHand) {
  const auto moved = [](const LocalSteps& local, float w, float delta, float& v) {
    const OptimizerSpec optimizer = outer_optimizer(local);
    const UpdateRates rates =
        update_rates(Schedule(outer_schedule(local)).rule(), optimizer, {0.9}, 1000000, HostMath{});
    float unused = 0.0f;
    return with_rule(optimizer.kind, [&]<class Rule>(Rule) {
      return Rule::apply(w, delta, 0.0f, rates.learning_rate, rates, v, unused, HostMath{});
    });
  };
  LocalSteps average;
  float v = 0.0f;
  EXPECT_FLOAT_EQ(moved(average, 1.0f, 0.4f, v), 0.6f);
  EXPECT_EQ(v, 0.0f);
  LocalSteps nesterov;
  nesterov.outer = OuterKind::nesterov;
  // v = 0.4, w = 1 - 0.7 (0.4 + 0.36); then v = 0.9 · 0.4 + 0.3 = 0.66, w = 0.468 - 0.7 (0.3 + 0.594)
  const float w = moved(nesterov, 1.0f, 0.4f, v);
  EXPECT_FLOAT_EQ(w, 0.468f);
  EXPECT_FLOAT_EQ(moved(nesterov, w, 0.3f, v), -0.1578f);
  EXPECT_FLOAT_EQ(v, 0.66f);
}

TEST(LocalSteps, LeaveOfTheAverageWhatAsManyStepsLeave) {
  EXPECT_EQ(ema_decay(AverageRule{0.9}, 7, 0), 1.0);
  EXPECT_EQ(ema_decay(AverageRule{0.9999}, 7, 1), ema_decay(0.9999, 7));
  EXPECT_DOUBLE_EQ(ema_decay(AverageRule{0.9999}, 7, 3), 8.0 / 17 * 9 / 18 * 10 / 19);
  EXPECT_DOUBLE_EQ(ema_decay(AverageRule{0.5}, 100, 3), 0.125);
}

TEST(LocalSteps, SayWhatTheyAre) {
  LocalSteps local;
  EXPECT_EQ(describe(local), "average");
  local.outer = OuterKind::nesterov;
  EXPECT_EQ(describe(local), "nesterov (rate 0.7, momentum 0.9)");
}

}  // namespace
}  // namespace cifar_mpi::optim
