#include "cpu/loss.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "cpu/bf16.hpp"
#include "cpu/task_runs.hpp"
#include "reference/reference.hpp"

namespace cifar_mpi::cpu {
namespace {

using engine::ControlLayout;
using engine::Precision;
using testing::kBf16Unit;
using testing::kFp32Unit;

constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kBatch = 300;
constexpr int kClasses = 10;
constexpr int kStride = 16;
constexpr int kGradStride = 12;
constexpr std::uint64_t kGlobalBatch = 1200;

/// A batch with every kind of row: ordinary, huge, equal logits, without a label. The padding after the
/// classes is NaN.
struct Batch {
  Batch() : logits(kBatch * kStride, kNotANumber), labels(kBatch), control(16) {
    for (std::size_t i = 0; i < kBatch; ++i) {
      labels[i] = static_cast<std::uint8_t>(i % 17 == 3 ? 255 : i % 23 == 5 ? kClasses : (i * 7) % kClasses);
      for (std::size_t j = 0; j < kClasses; ++j) {
        const float scale = i % 5 == 0 ? 1000.0f : i % 5 == 1 ? 0.0f : 5.0f;
        logits[i * kStride + j] = scale * testing::noise(i * kClasses + j, 1);
      }
    }
    binding.control = control.data();
    binding.global_batch = kGlobalBatch;
  }
  reference::Loss wanted(double smoothing = 0.0) const {
    reference::Array dense;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      if (i % kStride < kClasses) dense.push_back(logits[i]);
    }
    std::vector<std::uint8_t> known = labels;
    for (std::uint8_t& label : known) label = label < kClasses ? label : 255;
    return reference::softmax_cross_entropy(kClasses, dense, known, static_cast<double>(kGlobalBatch),
                                            smoothing);
  }
  /// Each exponential is within two units, and so are their sum, at least 1, and its logarithm: kClasses·2 in
  /// all; then the sum is stored as fp32.
  double loss_tolerance(double sum) const { return kBatch * 2.0 * kClasses * kFp32Unit + kFp32Unit * sum; }
  LossShape shape() const { return {kBatch, kClasses, kStride}; }

  std::vector<float> logits;
  std::vector<std::uint8_t> labels;
  std::vector<float> control;
  engine::TrainBinding binding;
};

TEST(TrainLoss, EqualsTheReference) {
  Batch batch;
  const reference::Loss wanted = batch.wanted();
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    std::vector<std::byte> bytes(kBatch * kGradStride * (precision == Precision::bf16 ? 2 : 4),
                                 std::byte{0xFF});
    batch.control = {0.5f, 2.0f, 3.0f, 4.0f, 5.0f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    batch.binding.control = batch.control.data();
    testing::run_audited(plan_train_loss(batch.binding, batch.shape(), batch.logits.data(),
                                         batch.labels.data(), bytes.data(), kGradStride, precision),
                         {testing::region(batch.logits), testing::region(batch.labels),
                          testing::region(bytes), testing::region(batch.control)});
    EXPECT_NEAR(batch.control[ControlLayout::loss_sum], 0.5 + wanted.sum,
                batch.loss_tolerance(0.5 + 2 * wanted.sum));
    EXPECT_EQ(batch.control[ControlLayout::correct], 2.0 + wanted.correct);
    EXPECT_EQ(batch.control[ControlLayout::samples], 3.0 + wanted.samples);
    EXPECT_EQ(batch.control[ControlLayout::stop], 4.0f);
    for (std::size_t i = 0; i < kBatch * kGradStride; ++i) {
      const float found = precision == Precision::bf16
                              ? to_float(reinterpret_cast<const bf16*>(bytes.data())[i])
                              : reinterpret_cast<const float*>(bytes.data())[i];
      const std::size_t row = i / kGradStride, column = i % kGradStride;
      const double grad = column < kClasses ? wanted.grad_logits[row * kClasses + column] : 0.0;
      const double unit = precision == Precision::bf16 ? kBf16Unit : kFp32Unit;
      const double tolerance =
          batch.labels[row] < kClasses && column < kClasses
              ? (2.0 + 2.0 * kClasses) * kFp32Unit / static_cast<double>(kGlobalBatch) + unit * std::abs(grad)
              : 0.0;
      ASSERT_NEAR(found, grad, tolerance) << row << ", " << column;
    }
  }
}

TEST(TrainLoss, EqualsTheReferenceWithSmoothedLabels) {
  Batch batch;
  batch.binding.label_smoothing = 0.25;
  const reference::Loss wanted = batch.wanted(0.25);
  std::vector<float> grad(kBatch * kClasses);
  testing::run(plan_train_loss(batch.binding, batch.shape(), batch.logits.data(), batch.labels.data(),
                               reinterpret_cast<std::byte*>(grad.data()), kClasses, Precision::fp32));
  EXPECT_NEAR(batch.control[ControlLayout::loss_sum], wanted.sum, batch.loss_tolerance(2 * wanted.sum));
  EXPECT_GT(std::abs(wanted.sum - batch.wanted().sum), 1.0) << "smoothing shows";
  EXPECT_EQ(batch.control[ControlLayout::correct], wanted.correct);
  for (std::size_t i = 0; i < grad.size(); ++i) {
    const double tolerance = (4.0 + 2.0 * kClasses) * kFp32Unit / static_cast<double>(kGlobalBatch);
    ASSERT_NEAR(grad[i], wanted.grad_logits[i], tolerance) << i;
  }
}

TEST(TrainLoss, TakesAnInfiniteLogitThatIsNobodysTarget) {
  Batch batch;
  batch.labels[11] = 4;
  batch.logits[11 * kStride + 2] = -kInfinity;
  std::vector<float> grad(kBatch * kClasses);
  testing::run(plan_train_loss(batch.binding, batch.shape(), batch.logits.data(), batch.labels.data(),
                               reinterpret_cast<std::byte*>(grad.data()), kClasses, Precision::fp32));
  EXPECT_TRUE(std::isfinite(batch.control[ControlLayout::loss_sum]));
}

TEST(TrainLoss, LeavesTheSameBitsWithAnyNumberOfThreads) {
  std::vector<float> first_grad, first_control;
  for (const int threads : {1, 2, 3}) {
    const testing::Threads with(threads);
    Batch batch;
    std::vector<float> grad(kBatch * kClasses);
    testing::run(plan_train_loss(batch.binding, batch.shape(), batch.logits.data(), batch.labels.data(),
                                 reinterpret_cast<std::byte*>(grad.data()), kClasses, Precision::fp32));
    if (first_grad.empty()) {
      first_grad = grad;
      first_control = batch.control;
    }
    EXPECT_EQ(grad, first_grad);
    EXPECT_EQ(batch.control, first_control);
  }
}

TEST(TrainLoss, IsNotFiniteWhenALogitIsNot) {
  for (const float bad : {kNotANumber, kInfinity}) {
    for (const std::size_t column : {0, 4, 9}) {
      Batch batch;
      batch.labels[11] = 4;
      batch.logits[11 * kStride + column] = bad;
      std::vector<float> grad(kBatch * kClasses);
      testing::run(plan_train_loss(batch.binding, batch.shape(), batch.logits.data(), batch.labels.data(),
                                   reinterpret_cast<std::byte*>(grad.data()), kClasses, Precision::fp32));
      EXPECT_FALSE(std::isfinite(batch.control[ControlLayout::loss_sum])) << bad << " in column " << column;
    }
  }
}

TEST(EvaluateLoss, EqualsTheReferenceAndPredictsTheFirstOfEquals) {
  Batch batch;
  const reference::Loss wanted = batch.wanted();
  std::vector<std::uint8_t> predictions(kBatch, 99);
  float loss_sum = -1.0f;
  std::vector<float> logits(kBatch * kClasses);
  engine::EvaluateBinding binding;
  binding.predictions = predictions.data();
  binding.loss_sum = &loss_sum;
  binding.logits = logits.data();
  const engine::Task task =
      plan_evaluate_loss(binding, batch.shape(), batch.logits.data(), batch.labels.data());
  testing::run(task);
  testing::run_audited(
      task, {testing::region(batch.logits), testing::region(batch.labels), testing::region(predictions),
             engine::bytes_of(&loss_sum, 1), testing::region(logits)});
  EXPECT_NEAR(loss_sum, wanted.sum, batch.loss_tolerance(wanted.sum));
  for (std::size_t i = 0; i < kBatch; ++i) {
    const float* row = batch.logits.data() + i * kStride;
    EXPECT_EQ(predictions[i], std::max_element(row, row + kClasses) - row) << i;
    EXPECT_TRUE(std::equal(row, row + kClasses, logits.data() + i * kClasses)) << i;
  }
}

TEST(EvaluateLoss, PredictsSomeClassForNaN) {
  Batch batch;
  for (std::size_t j = 0; j < kClasses; ++j) batch.logits[j] = kNotANumber;
  std::vector<std::uint8_t> predictions(kBatch, 99);
  float loss_sum = 0.0f;
  engine::EvaluateBinding binding;
  binding.predictions = predictions.data();
  binding.loss_sum = &loss_sum;
  testing::run(plan_evaluate_loss(binding, batch.shape(), batch.logits.data(), batch.labels.data()));
  EXPECT_LT(predictions[0], kClasses);
  EXPECT_TRUE(std::isnan(loss_sum));
}

TEST(TrainLoss, RefusesRowsShorterThanTheClasses) {
  Batch batch;
  EXPECT_THROW(plan_train_loss(batch.binding, {1, 10, 8}, nullptr, nullptr, nullptr, 16, Precision::fp32),
               std::logic_error);
  EXPECT_THROW(plan_train_loss(batch.binding, {1, 10, 16}, nullptr, nullptr, nullptr, 8, Precision::fp32),
               std::logic_error);
}

}  // namespace
}  // namespace cifar_mpi::cpu
