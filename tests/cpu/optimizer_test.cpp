#include "cpu/optimizer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "cpu/task_runs.hpp"

namespace cifar_mpi::cpu {
namespace {

using testing::kFp32Unit;

/// Three parameters, the second longer than a chunk, and their blocks; the last four floats of each are
/// padding.
struct Model {
  Model() {
    params.resize(3);
    params[0].weight_decay = 0.05f;
    params[1].weight_decay = 0.004f;
    params[2].rate_factor = 0.25f;
    for (const std::size_t floats : {28, 20000, 12}) engine::append(layout, floats);
    weights = testing::noise_of(layout.floats, 1);
    grads = testing::noise_of(layout.floats, 2);
    ema = testing::noise_of(layout.floats, 3);
    for (const auto& entry : layout.entries) {
      for (std::size_t i = entry.offset + entry.floats - 4; i < entry.offset + entry.floats; ++i) {
        weights[i] = grads[i] = ema[i] = 0.0f;
      }
    }
    control.resize(16);
    schedule.base_rate = 0.5;
    schedule.samples = 2 * schedule.global_batch;  // two steps an epoch, one epoch a drop
    schedule.epochs_per_decay = 1.0;
  }
  engine::UpdateBinding binding(std::size_t begin, std::size_t end, double* decay_sum) {
    return {weights.data(), grads.data(), ema.data(), begin,    end,
            control.data(), &step,        decay_sum,  schedule, 0.9999};
  }
  engine::Task task(std::size_t begin, std::size_t end, double* decay_sum) {
    return plan_update(binding(begin, end, decay_sum), params, layout);
  }
  std::vector<engine::Bytes> regions() const {
    return {testing::region(weights), testing::region(grads), testing::region(ema), testing::region(control),
            engine::bytes_of(&step, 1)};
  }
  double decay_of(std::size_t i) const {
    return i < layout.entries[1].offset ? 0.05f : i < layout.entries[2].offset ? 0.004f : 0.0;
  }
  double rate_factor_of(std::size_t i) const { return i < layout.entries[2].offset ? 1.0 : 0.25; }
  double decay_sum(std::size_t begin, std::size_t end) const {
    double sum = 0.0;
    for (std::size_t i = begin; i < end; ++i) sum += 0.5 * decay_of(i) * weights[i] * weights[i];
    return sum;
  }

  model::ParamTable params;
  engine::ParamLayout layout;
  std::vector<float> weights, grads, ema, control;
  optim::ScheduleSpec schedule;
  std::uint64_t step = 0;
};

TEST(Update, FollowsTheFormulasOverSeveralSteps) {
  Model m;
  const std::size_t middle = m.layout.entries[1].offset, end = m.layout.floats;
  double sums[2] = {};
  const engine::Task first = m.task(0, middle, &sums[0]), second = m.task(middle, end, &sums[1]);
  std::vector<double> w(m.weights.begin(), m.weights.end()), ema(m.ema.begin(), m.ema.end());
  constexpr int kSteps = 6;
  for (; m.step < kSteps; ++m.step) {
    const double t = static_cast<double>(m.step);
    const double rate = 0.5 * std::pow(0.1, static_cast<double>(m.step / 2)), d = (1.0 + t) / (10.0 + t);
    for (std::size_t i = 0; i < end; ++i) {
      w[i] -= rate * m.rate_factor_of(i) * (m.grads[i] + m.decay_of(i) * w[i]);
      ema[i] += (1.0 - d) * (w[i] - ema[i]);
    }
    testing::run_audited(first, m.regions());
    testing::run_audited(second, m.regions());
  }
  // Values stay below 3. A step rounds a weight at most 4 times (its rate included) and its average 4 times,
  // and the errors of the steps add up.
  const double tolerance = kSteps * 8.0 * 3.0 * kFp32Unit;
  for (std::size_t i = 0; i < end; ++i) {
    ASSERT_NEAR(m.weights[i], w[i], tolerance) << i;
    ASSERT_NEAR(m.ema[i], ema[i], tolerance) << i;
  }
}

TEST(Update, ShrinksWeightsGeometricallyWithoutAGradient) {
  Model m;
  m.schedule.epochs_per_decay = 100.0;
  std::fill(m.grads.begin(), m.grads.end(), 0.0f);
  const std::vector<float> before = m.weights;
  double sum = 0.0;
  const engine::Task task = m.task(0, m.layout.floats, &sum);
  constexpr int kSteps = 10;
  for (; m.step < kSteps; ++m.step) testing::run(task);
  for (std::size_t i = 0; i < before.size(); ++i) {
    const double wanted = before[i] * std::pow(1.0 - 0.5 * m.decay_of(i), kSteps);
    ASSERT_NEAR(m.weights[i], wanted, kSteps * 4.0 * kFp32Unit * std::abs(before[i])) << i;
  }
}

TEST(Update, SumsTheDecayBeforeTheUpdate) {
  Model m;
  const std::size_t middle = m.layout.entries[1].offset, end = m.layout.floats;
  double sums[2] = {-1.0, -1.0};
  const double wanted[2] = {m.decay_sum(0, middle), m.decay_sum(middle, end)};
  testing::run(m.task(0, middle, &sums[0]));
  testing::run(m.task(middle, end, &sums[1]));
  for (int i : {0, 1})
    EXPECT_NEAR(sums[i], wanted[i], 0x1.0p-53 * 20000 * wanted[i]);  // one rounding per summand
}

TEST(Update, FreezesEveryBitWhenTheLossIsNotFinite) {
  for (const float loss : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                           -std::numeric_limits<float>::infinity()}) {
    Model m;
    m.control[engine::ControlLayout::loss_sum] = loss;
    m.grads[5] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> weights = m.weights, ema = m.ema;
    double sum = -1.0;
    testing::run_audited(m.task(0, m.layout.floats, &sum), m.regions());
    EXPECT_EQ(m.weights, weights);
    EXPECT_EQ(m.ema, ema);
    const double wanted = m.decay_sum(0, m.layout.floats);
    EXPECT_NEAR(sum, wanted, 0x1.0p-53 * 20000 * wanted);
  }
}

TEST(Update, LeavesTheSameBitsWithAnyNumberOfThreadsAndPaddingZero) {
  std::vector<float> weights, ema;
  double wanted = 0.0;
  for (const int threads : {1, 2, 3}) {
    const testing::Threads with(threads);
    Model m;
    double sum = 0.0;
    testing::run(m.task(0, m.layout.floats, &sum));
    if (weights.empty()) {
      weights = m.weights;
      ema = m.ema;
      wanted = sum;
    }
    EXPECT_EQ(m.weights, weights);
    EXPECT_EQ(m.ema, ema);
    EXPECT_EQ(sum, wanted);
    EXPECT_EQ(m.weights.back(), 0.0f);
    EXPECT_EQ(m.ema.back(), 0.0f);
  }
}

TEST(Update, LeavesWhatIsOutsideItsSpan) {
  Model m;
  const std::size_t begin = m.layout.entries[1].offset, end = m.layout.entries[2].offset;
  const std::vector<float> before = m.weights;
  double sum = 0.0;
  testing::run(m.task(begin, end, &sum));
  EXPECT_EQ(m.weights[begin - 5], before[begin - 5]);
  EXPECT_NE(m.weights[begin], before[begin]);
  EXPECT_NE(m.weights[end - 5], before[end - 5]);
  EXPECT_EQ(m.weights[end], before[end]);
}

TEST(Update, RefusesASpanThatCutsAParameter) {
  Model m;
  double sum = 0.0;
  EXPECT_THROW(m.task(0, 48, &sum), std::logic_error);
  EXPECT_THROW(m.task(16, m.layout.floats, &sum), std::logic_error);
  EXPECT_THROW(m.task(0, m.layout.floats + 16, &sum), std::logic_error);
  m.params.pop_back();
  EXPECT_THROW(m.task(0, 32, &sum), std::logic_error);
}

}  // namespace
}  // namespace cifar_mpi::cpu
