#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "cpu/optimizer.hpp"
#include "cpu/task_runs.hpp"

namespace cifar_mpi::cpu {
namespace {

/// A block of the table of state with lookahead, and its task.
struct SlowWeights {
  explicit SlowWeights(std::size_t floats)
      : weights(testing::noise_of(floats, 1)),
        slow(testing::noise_of(floats, 2)),
        ema(testing::noise_of(floats, 3)) {}
  engine::Task task() {
    return plan_lookahead({weights.data(), slow.data(), ema.data(), weights.size(), rule, average,
                           control.data(), &step, clips ? &norm : nullptr});
  }
  std::vector<float> weights, slow, ema;
  std::vector<float> control = std::vector<float>(16);
  optim::Lookahead rule{.every = 3, .from = 2, .until = 10, .keep = 0.5, .power = 2.0};
  optim::AverageRule average{0.75};
  std::uint64_t step = 0;
  bool clips = false;
  double norm = 1.0;
};

/// In doubles: begins after 2 steps, pulls after 5 and 8, returns after 10 and does nothing else.
TEST(Lookahead, FollowsTheFormulasInEveryStepWithAnyNumberOfThreads) {
  constexpr std::size_t kFloats = 20'000;
  for (std::uint64_t done = 1; done <= 12; ++done) {  // after 1000 steps, when the average has its decay
    std::vector<float> one[3];
    for (const int threads : {1, 3}) {
      const testing::Threads with(threads);
      SlowWeights s(kFloats);
      s.rule.from += 1'000;
      s.rule.until += 1'000;
      s.step = 1'000 + done - 1;
      const SlowWeights before = s;
      testing::run_audited(s.task(),
                           {testing::region(s.weights), testing::region(s.slow), testing::region(s.ema),
                            testing::region(s.control), engine::bytes_of(&s.step, 1)});
      const double elapsed = static_cast<double>(1'000 + done) / 1'010.0;
      const bool due = done == 5 || done == 8;
      const double share = due ? 1.0 - 0.5 * elapsed * elapsed : 0.0;
      for (std::size_t i = 0; i < kFloats; ++i) {
        const double w = before.weights[i], slow = before.slow[i], ema = before.ema[i];
        const double new_slow = done == 2 ? w : slow + share * (w - slow);
        const double new_w = due || done == 10 ? new_slow : w;
        // of values below 1 whose differences are below 2: four roundings
        ASSERT_NEAR(s.slow[i], new_slow, 4.0 * testing::kFp32Unit) << done;
        ASSERT_NEAR(s.weights[i], new_w, 4.0 * testing::kFp32Unit) << done;
        ASSERT_NEAR(s.ema[i], ema + 0.25 * (new_w - w), 6.0 * testing::kFp32Unit) << done;
      }
      if (done != 2 && !due && done != 10) {
        EXPECT_EQ(s.weights, before.weights);
        EXPECT_EQ(s.slow, before.slow);
        EXPECT_EQ(s.ema, before.ema);
      }
      if (threads == 1) one[0] = s.weights, one[1] = s.slow, one[2] = s.ema;
      EXPECT_EQ(s.weights, one[0]);
      EXPECT_EQ(s.slow, one[1]);
      EXPECT_EQ(s.ema, one[2]);
    }
  }
}

TEST(Lookahead, KeepsEveryBitWhenTheStepDoesNotApply) {
  for (const bool loss : {true, false}) {
    SlowWeights s(64);
    s.step = 4;
    s.clips = true;
    (loss ? s.control[engine::ControlLayout::loss_sum] : s.control[1]) =
        std::numeric_limits<float>::quiet_NaN();
    if (!loss) s.norm = std::numeric_limits<double>::infinity();
    const SlowWeights before = s;
    testing::run(s.task());
    EXPECT_EQ(s.weights, before.weights) << loss;
    EXPECT_EQ(s.slow, before.slow);
    EXPECT_EQ(s.ema, before.ema);
  }
}

}  // namespace
}  // namespace cifar_mpi::cpu
