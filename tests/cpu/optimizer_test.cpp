#include "cpu/optimizer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/optim/optimizer.hpp"
#include "cpu/task_runs.hpp"
#include "reference/reference.hpp"

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
    return {weights.data(),
            grads.data(),
            ema.data(),
            begin,
            end,
            control.data(),
            &step,
            decay_sum,
            schedule,
            {0.9999},
            optimizer,
            {states[0].empty() ? nullptr : states[0].data(), states[1].empty() ? nullptr : states[1].data()}};
  }
  /// With the whole state of the optimizer.
  void take(optim::OptimizerKind kind) {
    optimizer.kind = kind;
    const auto kept = static_cast<std::size_t>(optim::with_rule(kind, []<class R>(R) { return R::kStates; }));
    for (std::size_t s = 0; s < kept; ++s) states[s].assign(layout.floats, 0.0f);
  }
  engine::Task task(std::size_t begin, std::size_t end, double* decay_sum) {
    return plan_update(binding(begin, end, decay_sum), params, layout);
  }
  std::vector<engine::Bytes> regions() const {
    std::vector<engine::Bytes> all{testing::region(weights),   testing::region(grads),
                                   testing::region(ema),       testing::region(control),
                                   engine::bytes_of(&step, 1), engine::bytes_of(&norm, 1)};
    for (const auto& state : states) {
      if (!state.empty()) all.push_back(testing::region(state));
    }
    return all;
  }
  double decay_of(std::size_t i) const {
    return i < layout.entries[1].offset ? 0.05f : i < layout.entries[2].offset ? 0.004f : 0.0;
  }
  double rate_factor_of(std::size_t i) const { return i < layout.entries[2].offset ? 1.0 : 0.25; }
  bool padding(std::size_t i) const {
    const auto& entries = layout.entries;
    return std::any_of(entries.begin(), entries.end(), [&](const auto& entry) {
      return i + 4 >= entry.offset + entry.floats && i < entry.offset + entry.floats;
    });
  }
  double decay_sum(std::size_t begin, std::size_t end) const {
    double sum = 0.0;
    for (std::size_t i = begin; i < end; ++i) sum += 0.5 * decay_of(i) * weights[i] * weights[i];
    return sum;
  }

  model::ParamTable params;
  engine::ParamLayout layout;
  std::vector<float> weights, grads, ema, control;
  optim::ScheduleSpec schedule;
  optim::OptimizerSpec optimizer;
  std::vector<float> states[optim::kMostOptimizerRows];
  double norm = 0.0;
  std::uint64_t step = 0;
};

constexpr optim::OptimizerKind kKinds[] = {optim::OptimizerKind::sgd, optim::OptimizerKind::momentum,
                                           optim::OptimizerKind::nesterov, optim::OptimizerKind::adamw};

TEST(Update, FollowsTheFormulasOverSeveralSteps) {
  Model m;
  m.params[0].steps = 4;
  const std::size_t middle = m.layout.entries[1].offset, end = m.layout.floats;
  double sums[2] = {};
  const engine::Task first = m.task(0, middle, &sums[0]), second = m.task(middle, end, &sums[1]);
  std::vector<double> w(m.weights.begin(), m.weights.end()), ema(m.ema.begin(), m.ema.end());
  constexpr int kSteps = 6;
  for (; m.step < kSteps; ++m.step) {
    const double t = static_cast<double>(m.step);
    const double rate = 0.5 * std::pow(0.1, static_cast<double>(m.step / 2)), d = (1.0 + t) / (10.0 + t);
    for (std::size_t i = 0; i < end; ++i) {
      const bool stays = m.step >= 4 && i < middle;
      if (!stays) w[i] -= rate * m.rate_factor_of(i) * (m.grads[i] + m.decay_of(i) * w[i]);
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

/// Different gradients in every step, against sums over all of them; in two spans, audited, with padding.
TEST(Update, FollowsEveryOptimizersSumsOverAllGradients) {
  constexpr int kSteps = 6;
  for (const optim::OptimizerKind kind : kKinds) {
    SCOPED_TRACE(to_string(kind));
    Model m;
    m.take(kind);
    m.optimizer.eps = 1e-3;
    m.schedule.base_rate = 0.125;
    const std::vector<float> first = m.weights, pattern = m.grads;
    const std::size_t middle = m.layout.entries[1].offset, end = m.layout.floats;
    double sums[2] = {};
    const engine::Task tasks[] = {m.task(0, middle, &sums[0]), m.task(middle, end, &sums[1])};
    std::vector<double> rates;
    const auto factor = [](int t) { return t % 3 == 0 ? 1.0f : t % 3 == 1 ? -0.5f : 0.25f; };
    for (; m.step < kSteps; ++m.step) {
      const int t = static_cast<int>(m.step);
      for (std::size_t i = 0; i < end; ++i) m.grads[i] = factor(t) * pattern[i];
      const double decay_sum = m.decay_sum(0, end);
      for (const engine::Task& task : tasks) testing::run_audited(task, m.regions());
      EXPECT_NEAR(sums[0] + sums[1], optim::decays_by_loss(kind) ? decay_sum : 0.0, 1e-9 * decay_sum);
      rates.push_back(optim::Schedule(m.schedule).rate(m.step));
    }
    for (std::size_t i = 0; i < end; ++i) {
      std::vector<double> gradients, own_rates = rates;
      for (int t = 0; t < kSteps; ++t) gradients.push_back(factor(t) * static_cast<double>(pattern[i]));
      for (double& rate : own_rates) rate *= m.rate_factor_of(i);
      const std::vector<double> wanted = reference::trajectory(m.optimizer, static_cast<double>(first[i]),
                                                               m.decay_of(i), gradients, own_rates);
      // The accumulated values stay below 6 and the rate is 1/8; each step rounds them and the weight, at
      // most 3, a few times. adamw's quotient is at most 2, of two values with a few roundings each.
      ASSERT_NEAR(m.weights[i], wanted.back(), kSteps * 12.0 * kFp32Unit) << i;
      if (m.padding(i)) {
        ASSERT_EQ(m.weights[i], 0.0f) << i;
        for (const auto& state : m.states) ASSERT_TRUE(state.empty() || state[i] == 0.0f) << i;
      }
      if (kind != optim::OptimizerKind::adamw) continue;
      ASSERT_NEAR(m.states[0][i], reference::faded_sum(0.1, 0.9, gradients), 8 * kFp32Unit) << i;
      std::vector<double> squares;
      for (const double g : gradients) squares.push_back(g * g);
      ASSERT_NEAR(m.states[1][i], reference::faded_sum(0.001, 0.999, squares), 0.01 * 8 * kFp32Unit) << i;
    }
  }
}

TEST(Update, ClipsBeforeTheDecayIsAdded) {
  for (const double norm : {8.0, 0.5}) {
    Model m;
    m.schedule.base_rate = 1.0;
    const std::vector<float> first = m.weights;
    double sum = 0.0;
    engine::UpdateBinding binding = m.binding(0, m.layout.floats, &sum);
    m.norm = norm;
    binding.clip_norm = 2.0;
    binding.gradient_norm = &m.norm;
    testing::run_audited(plan_update(binding, m.params, m.layout), m.regions());
    const double clip = norm > 2.0 ? 0.25 : 1.0;
    for (std::size_t i = 0; i < m.layout.floats; ++i) {
      const double wanted = first[i] - m.rate_factor_of(i) * (clip * m.grads[i] +
                                                              m.decay_of(i) * static_cast<double>(first[i]));
      ASSERT_NEAR(m.weights[i], wanted, 4.0 * 3.0 * kFp32Unit) << i;
    }
  }
}

TEST(Update, FreezesEveryBitWhenTheNormIsNotFinite) {
  for (const optim::OptimizerKind kind : kKinds) {
    Model m;
    m.take(kind);
    const std::vector<float> weights = m.weights, ema = m.ema, s = m.states[0], q = m.states[1];
    double sum = 0.0;
    engine::UpdateBinding binding = m.binding(0, m.layout.floats, &sum);
    m.norm = std::numeric_limits<double>::infinity();
    binding.clip_norm = 2.0;
    binding.gradient_norm = &m.norm;
    const engine::Task task = plan_update(binding, m.params, m.layout);
    testing::run(task);
    EXPECT_EQ(m.weights, weights);
    EXPECT_EQ(m.ema, ema);
    EXPECT_EQ(m.states[0], s);
    EXPECT_EQ(m.states[1], q);
    m.norm = 1.0;
    testing::run(task);
    EXPECT_NE(m.weights, weights);
  }
}

TEST(Update, DividesTheRateByTheStalenessAboveOne) {
  for (const auto& [staleness, divisor] : {std::pair{0.0f, 1.0}, {1.0f, 1.0}, {4.0f, 4.0}}) {
    Model plain, divided;
    double sum = 0.0;
    engine::UpdateBinding binding = plain.binding(0, plain.layout.floats, &sum);
    binding.schedule.base_rate /= divisor;  // a power of two: exact
    testing::run(plan_update(binding, plain.params, plain.layout));
    binding = divided.binding(0, divided.layout.floats, &sum);
    binding.divides_by_staleness = true;
    divided.control[engine::ControlLayout::staleness] = staleness;
    testing::run_audited(plan_update(binding, divided.params, divided.layout), divided.regions());
    EXPECT_EQ(divided.weights, plain.weights) << staleness;
  }
}

/// Non-finite values must reach the averaging step, which all ranks see.
TEST(Update, OfALocalStepAppliesWhateverIsNotFiniteAndLeavesTheAverage) {
  Model m;
  const std::vector<float> weights = m.weights, ema = m.ema;
  double sum = 0.0;
  engine::UpdateBinding binding = m.binding(0, m.layout.floats, &sum);
  binding.average_steps = 0;
  m.control[engine::ControlLayout::loss_sum] = std::numeric_limits<float>::quiet_NaN();
  testing::run_audited(plan_update(binding, m.params, m.layout), m.regions());
  EXPECT_NE(m.weights, weights);
  EXPECT_EQ(m.ema, ema);
  m.grads[3] = std::numeric_limits<float>::infinity();
  m.norm = std::numeric_limits<double>::infinity();
  binding.clip_norm = 2.0;
  binding.gradient_norm = &m.norm;
  testing::run(plan_update(binding, m.params, m.layout));
  EXPECT_TRUE(std::isnan(m.weights[3]));
}

TEST(Update, OfSeveralStepsMovesTheAverageAsFarAsTheyWould) {
  Model m;
  m.step = 5;
  const std::vector<float> ema = m.ema;
  double sum = 0.0;
  engine::UpdateBinding binding = m.binding(0, m.layout.floats, &sum);
  binding.average_steps = 3;
  testing::run(plan_update(binding, m.params, m.layout));
  const double left = 6.0 / 15 * 7 / 16 * 8 / 17;
  for (std::size_t i = 0; i < m.ema.size(); ++i) {
    const double wanted =
        left * static_cast<double>(ema[i]) + (1.0 - left) * static_cast<double>(m.weights[i]);
    ASSERT_NEAR(m.ema[i], wanted, 4.0 * 3.0 * kFp32Unit) << i;
  }
}

TEST(GradientNorm, IsThatOfAllGradientsWithAnyNumberOfThreads) {
  const std::vector<float> grads = testing::noise_of(3 * 8192 + 48, 4, 1e20f);  // squares no float can hold
  double square = 0.0;
  for (const float g : grads) square += static_cast<double>(g) * static_cast<double>(g);
  double first = 0.0;
  for (const int threads : {1, 2, 3}) {
    const testing::Threads with(threads);
    double norm = -1.0;
    testing::run_audited(plan_gradient_norm({grads.data(), grads.size(), &norm}),
                         {testing::region(grads), engine::bytes_of(&norm, 1)});
    EXPECT_NEAR(norm, std::sqrt(square), 1e-12 * std::sqrt(square));
    if (threads == 1) first = norm;
    EXPECT_EQ(norm, first);
  }
}

TEST(GradientNorm, IsNotFiniteWhenAGradientIsNot) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> grads(8192 + 16, 1.0f);
    grads[8200] = bad;
    double norm = 0.0;
    testing::run(plan_gradient_norm({grads.data(), grads.size(), &norm}));
    EXPECT_FALSE(std::isfinite(norm)) << bad;
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
  std::vector<float> weights, ema, kept;
  double wanted = 0.0;
  for (const int threads : {1, 2, 3}) {
    const testing::Threads with(threads);
    Model m;
    m.take(optim::OptimizerKind::nesterov);
    double sum = 0.0;
    testing::run(m.task(0, m.layout.floats, &sum));
    if (weights.empty()) {
      weights = m.weights;
      ema = m.ema;
      kept = m.states[0];
      wanted = sum;
    }
    EXPECT_EQ(m.states[0], kept);
    EXPECT_EQ(m.states[0].back(), 0.0f);
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

/// Parts of parameters, as servers have them.
TEST(Update, GivesTheSameBitsHoweverTheBlockIsCut) {
  Model whole, parts;
  double sum = 0.0, part = 0.0, sum_of_parts = 0.0;
  testing::run(whole.task(0, whole.layout.floats, &sum));
  for (std::size_t begin = 0, end = 16; begin < parts.layout.floats; begin = end, end = begin + 48) {
    testing::run(parts.task(begin, std::min(end, parts.layout.floats), &part));
    sum_of_parts += part;
  }
  EXPECT_EQ(parts.weights, whole.weights);
  EXPECT_EQ(parts.ema, whole.ema);
  EXPECT_NEAR(sum_of_parts, sum, 1e-12 * sum);
}

TEST(Update, RefusesASpanThatIsNotOfWholeLines) {
  Model m;
  double sum = 0.0;
  EXPECT_THROW(m.task(0, 40, &sum), std::logic_error);
  EXPECT_THROW(m.task(8, 32, &sum), std::logic_error);
  EXPECT_THROW(m.task(0, m.layout.floats + 16, &sum), std::logic_error);
  m.params.pop_back();
  EXPECT_THROW(m.task(0, 32, &sum), std::logic_error);
}

}  // namespace
}  // namespace cifar_mpi::cpu
