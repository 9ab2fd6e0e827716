#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "cuda/device/gpu.hpp"
#include "cuda/optimizer.hpp"

/// The update of more floats than the threads take at once.
namespace cifar_mpi::cuda::testing {
namespace {

class CudaUpdate : public GpuTest {};

TEST_F(CudaUpdate, TakesEveryFloatOnceAndNoneWhenTheLossIsNotFinite) {
  Bench bench;
  constexpr std::uint64_t kAtOnce = std::uint64_t{4} * 256 * kUpdateBlocks, kBegin = 16;
  constexpr std::uint64_t kEnd = kBegin + 2 * kAtOnce + 4 * 257;  // a third round for a few threads
  Update work;
  work.segments.items[work.segments.count++] = {kBegin, kBegin + 32, 0.0f, 1.0f, 1000};
  work.segments.items[work.segments.count++] = {kBegin + 32, kBegin + 64, 0.0f, 1.0f, 1001};
  work.segments.items[work.segments.count++] = {kBegin + 64, kAtOnce + 4, 0.5f, 0.5f};
  work.segments.items[work.segments.count++] = {kAtOnce + 4, kEnd, 0.25f};
  work.rule.scaled_rate = 0.5;
  work.average.decay = 0.75;
  work.step = bench.upload(std::vector<std::uint64_t>{1000});
  work.partials = bench.take<double>(kUpdateBlocks);
  work.counter = bench.counters(1);
  work.adds = true;
  std::vector<float> params, grads, ema;
  for (std::uint64_t i = 0; i < kEnd + 16; ++i) {  // so that the results are exact
    params.push_back(static_cast<float>(i * 7 % 33) / 16.0f - 1.0f);
    grads.push_back(static_cast<float>(i * 5 % 17) / 16.0f);
    ema.push_back(static_cast<float>(i * 3 % 65) / 16.0f);
  }
  for (const bool finite : {true, false}) {
    work.loss_sum = bench.upload(std::vector{finite ? 3.0f : std::numeric_limits<float>::infinity()});
    work.decay_sum = bench.upload(std::vector{1.0});
    work.params = bench.upload(params);
    work.grads = bench.upload(grads);
    work.ema = bench.upload(ema);
    update(bench.stream, work);
    const std::vector<float> new_params = bench.download(work.params, params.size());
    const std::vector<float> new_ema = bench.download(work.ema, ema.size());
    double decay_sum = 1.0;
    for (std::uint64_t i = 0; i < params.size(); ++i) {
      const bool inside = i >= kBegin && i < kEnd;
      const Segment segment = segment_of(work.segments, i);
      const float decay = inside ? segment.decay : 0.0f;
      decay_sum += static_cast<double>(decay) * 0.5 * static_cast<double>(params[i] * params[i]);
      const bool changes = inside && finite;
      const float w = changes && segment.steps != 1000  // steps before this one
                          ? params[i] - 0.5f * segment.rate_factor * (grads[i] + decay * params[i])
                          : params[i];
      ASSERT_EQ(new_params[i], w) << i;
      ASSERT_EQ(new_ema[i], changes ? ema[i] + 0.25f * (w - ema[i]) : ema[i]) << i;
    }
    EXPECT_EQ(bench.download(work.decay_sum, 1)[0], decay_sum);
  }
}

/// A local step, whose averaging step checks for non-finite values, and a step that stands for several.
TEST_F(CudaUpdate, OfALocalStepAppliesWhateverTheLossIsAndLeavesTheAverage) {
  Bench bench;
  constexpr std::uint64_t kFloats = 64;
  Update work;
  work.segments.items[work.segments.count++] = {0, kFloats, 0.0f};
  work.rule.scaled_rate = 0.5;
  work.average.decay = 0.75;
  work.step = bench.upload(std::vector<std::uint64_t>{1000});
  work.partials = bench.take<double>(kUpdateBlocks);
  work.counter = bench.counters(1);
  work.loss_sum = bench.upload(std::vector{std::numeric_limits<float>::quiet_NaN()});
  work.decay_sum = bench.upload(std::vector{0.0});
  work.grads = bench.upload(std::vector<float>(kFloats, 2.0f));
  work.params = bench.upload(std::vector<float>(kFloats, 3.0f));
  work.ema = bench.upload(std::vector<float>(kFloats, 10.0f));
  work.average_steps = 0;
  update(bench.stream, work);
  EXPECT_EQ(bench.download(work.params, kFloats), std::vector<float>(kFloats, 2.0f));
  EXPECT_EQ(bench.download(work.ema, kFloats), std::vector<float>(kFloats, 10.0f));
  work.average_steps = 2;
  update(bench.stream, work);
  EXPECT_EQ(bench.download(work.params, kFloats), std::vector<float>(kFloats, 2.0f));
  work.loss_sum = bench.upload(std::vector{1.0f});
  update(bench.stream, work);
  EXPECT_EQ(bench.download(work.params, kFloats), std::vector<float>(kFloats, 1.0f));
  EXPECT_EQ(bench.download(work.ema, kFloats), std::vector<float>(kFloats, 10.0f - 9.0f * 0.4375f));
}

/// Every rule's state, clipped and not, against the formula on the host.
TEST_F(CudaUpdate, KeepsWhatEveryRuleKeeps) {
  Bench bench;
  constexpr std::uint64_t kBegin = 16, kEnd = 16 + 4 * 1000;
  std::vector<float> params, grads, ema, s, q;
  for (std::uint64_t i = 0; i < kEnd + 16; ++i) {
    params.push_back(noise(i, 1));
    grads.push_back(noise(i, 2));
    ema.push_back(noise(i, 3));
    s.push_back(noise(i, 4));
    q.push_back(noise(i, 5) + 1.0f);
  }
  for (const auto kind : {optim::OptimizerKind::sgd, optim::OptimizerKind::momentum,
                          optim::OptimizerKind::nesterov, optim::OptimizerKind::adamw}) {
    for (const double norm : {0.0, 1.0, 8.0, static_cast<double>(std::numeric_limits<float>::infinity())}) {
      Update work;
      work.segments.items[work.segments.count++] = {kBegin, 1024, 0.0f};
      work.segments.items[work.segments.count++] = {1024, kEnd, 0.5f, 0.5f};
      work.rule.scaled_rate = 0.25;
      work.average.decay = 0.75;
      work.optimizer = {.kind = kind, .eps = 1e-3};
      work.step = bench.upload(std::vector<std::uint64_t>{3});
      work.partials = bench.take<double>(kUpdateBlocks);
      work.counter = bench.counters(1);
      work.loss_sum = bench.upload(std::vector{1.0f});
      work.decay_sum = bench.upload(std::vector{1.0});
      work.params = bench.upload(params);
      work.grads = bench.upload(grads);
      work.ema = bench.upload(ema);
      const int kept = optim::with_rule(kind, []<class Rule>(Rule) { return Rule::kStates; });
      if (kept > 0) work.states[0] = bench.upload(s);
      if (kept > 1) work.states[1] = bench.upload(q);
      work.clip_norm = 2.0;
      if (norm > 0.0) work.gradient_norm = bench.upload(std::vector{norm});
      update(bench.stream, work);
      const std::vector<float> new_params = bench.download(work.params, params.size());
      const std::vector<float> new_s = kept > 0 ? bench.download(work.states[0], s.size()) : s;
      const std::vector<float> new_q = kept > 1 ? bench.download(work.states[1], q.size()) : q;
      optim::UpdateRates rates = optim::update_rates(work.rule, work.optimizer, {0.75}, 3, optim::HostMath{});
      const float clip = norm > 0.0 ? optim::clip_factor(2.0, norm) : 1.0f;
      for (std::uint64_t i = 0; i < params.size(); ++i) {
        float w = params[i], first = s[i], second = q[i];
        if (i >= kBegin && i < kEnd && std::isfinite(norm)) {
          const Segment segment = segment_of(work.segments, i);
          w = optim::with_rule(kind, [&]<class Rule>(Rule) {
            return Rule::apply(w, clip * grads[i], segment.decay, 0.25f * segment.rate_factor, rates, first,
                               second, optim::HostMath{});
          });
        }
        // single operations on values of at most 3, which a device may fuse
        ASSERT_NEAR(new_params[i], w, 8 * 0x1.0p-24) << i;
        ASSERT_NEAR(new_s[i], first, 8 * 0x1.0p-24) << i;
        ASSERT_NEAR(new_q[i], second, 8 * 0x1.0p-24) << i;
      }
      if (!optim::decays_by_loss(kind)) {
        EXPECT_EQ(bench.download(work.decay_sum, 1)[0], 0.0);
      }
    }
  }
}

TEST_F(CudaUpdate, MovesRunningStatisticsAndNotWhenTheLossOrTheNormIsNotFinite) {
  Bench bench;
  constexpr std::uint64_t kBegin = 48, kEnd = kBegin + 600;  // the launch is of the second half
  Running work;
  work.begin = kBegin;
  work.segments.items[work.segments.count++] = {kBegin + 304, kBegin + 320, 0.0f, 0.25f};
  work.segments.items[work.segments.count++] = {kBegin + 320, kEnd, 0.0f, 0.5f};
  work.average.decay = 0.75;
  work.step = bench.upload(std::vector<std::uint64_t>{1000});
  std::vector<float> params, ema, statistics;
  for (std::uint64_t i = 0; i < kEnd + 16; ++i) {  // so that the results are exact
    params.push_back(static_cast<float>(i * 7 % 33) / 16.0f - 1.0f);
    ema.push_back(static_cast<float>(i * 3 % 65) / 16.0f);
    if (i >= kBegin) statistics.push_back(static_cast<float>(i * 5 % 17) / 16.0f);
  }
  work.statistics = bench.upload(statistics);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto& [loss, norm] : {std::pair{3.0, 1.0}, std::pair{nan, 1.0}, std::pair{3.0, nan}}) {
    const bool finite = std::isfinite(loss) && std::isfinite(norm);
    work.loss_sum = bench.upload(std::vector{static_cast<float>(loss)});
    work.gradient_norm = bench.upload(std::vector{norm});
    work.params = bench.upload(params);
    work.ema = bench.upload(ema);
    update_running(bench.stream, work);
    const std::vector<float> new_params = bench.download(work.params, params.size());
    const std::vector<float> new_ema = bench.download(work.ema, ema.size());
    for (std::uint64_t i = 0; i < params.size(); ++i) {
      const bool changes = finite && i >= kBegin + 304 && i < kEnd;
      const float share = i < kBegin + 320 ? 0.25f : 0.5f;
      const float r = changes ? params[i] + share * (statistics[i - kBegin] - params[i]) : params[i];
      ASSERT_EQ(new_params[i], r) << i;
      ASSERT_EQ(new_ema[i], changes ? ema[i] + 0.25f * (r - ema[i]) : ema[i]) << i;
    }
  }
}

/// Begins, pulls, returns or does nothing, against the formula on the host.
TEST_F(CudaUpdate, PullsWeightsToSlowOnes) {
  Bench bench;
  constexpr std::uint64_t kFloats =
      std::uint64_t{256} * kUpdateBlocks + 77;  // a second round for a few threads
  std::vector<float> params, slow, ema;
  for (std::uint64_t i = 0; i < kFloats; ++i) {
    params.push_back(noise(i, 1));
    slow.push_back(noise(i, 2));
    ema.push_back(noise(i, 3));
  }
  double norm = 1.0;
  for (const float loss : {1.0f, std::numeric_limits<float>::infinity()}) {
    for (std::uint64_t step = 1000; step < 1008; ++step) {
      LookaheadPull work;
      work.rule = {.every = 3, .from = 1002, .until = 1007, .keep = 0.5, .power = 2.0};
      work.average.decay = 0.75;
      work.params = bench.upload(params);
      work.slow = bench.upload(slow);
      work.ema = bench.upload(ema);
      work.floats = kFloats;
      work.loss_sum = bench.upload(std::vector{loss});
      work.step = bench.upload(std::vector{step});
      work.gradient_norm = bench.upload(std::vector{norm});
      pull(bench.stream, work);
      const optim::Pull wanted = optim::pull_after(work.rule, step, optim::HostMath{});
      EXPECT_EQ(wanted.begins || wanted.pulls, step == 1001 || step == 1004 || step == 1006) << step;
      const auto new_params = bench.download(work.params, kFloats),
                 new_slow = bench.download(work.slow, kFloats), new_ema = bench.download(work.ema, kFloats);
      for (std::uint64_t i = 0; i < kFloats; ++i) {
        float w = params[i], s = slow[i], e = ema[i];
        if (std::isfinite(loss)) optim::apply(wanted, 0.25f, w, s, e);
        // a device may fuse a product and a sum of values below 2, and its power may differ by a rounding
        ASSERT_NEAR(new_params[i], w, 0x1.0p-22) << i;
        ASSERT_NEAR(new_slow[i], s, 0x1.0p-22) << i;
        ASSERT_NEAR(new_ema[i], e, 0x1.0p-22) << i;
      }
      bench.clear();
    }
  }
}

TEST_F(CudaUpdate, FindsTheNormOfAllGradients) {
  Bench bench;
  const std::uint64_t floats = std::uint64_t{4} * 256 * kUpdateBlocks + 4 * 77;
  std::vector<float> grads;
  double square = 0.0;
  for (std::uint64_t i = 0; i < floats; ++i) {
    grads.push_back(1e20f * noise(i, 6));  // squares that no float can represent
    square += static_cast<double>(grads.back()) * static_cast<double>(grads.back());
  }
  GradientNorm work{bench.upload(grads), floats, bench.take<double>(1), bench.take<double>(kUpdateBlocks),
                    bench.counters(1)};
  for (int i = 0; i < 2; ++i) {
    gradient_norm(bench.stream, work);
    EXPECT_NEAR(bench.download(work.norm, 1)[0], std::sqrt(square), 1e-12 * std::sqrt(square));
  }
  grads[grads.size() - 2] = std::numeric_limits<float>::quiet_NaN();
  work.grads = bench.upload(grads);
  gradient_norm(bench.stream, work);
  EXPECT_FALSE(std::isfinite(bench.download(work.norm, 1)[0]));
}

}  // namespace
}  // namespace cifar_mpi::cuda::testing
