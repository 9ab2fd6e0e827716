#include "reference/reference.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "cifar_mpi/base/random.hpp"

namespace cifar_mpi::reference {
namespace {

constexpr double kEps = std::numeric_limits<double>::epsilon();
constexpr double kStep = 1e-3;

/// `count` values in [-1, 1).
Array uniform(std::size_t count, std::uint64_t seed) {
  Array values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = 2.0 * uniform01(random4(seed, RandomPurpose::synthetic, i, 0)[0]) - 1.0;
  }
  return values;
}

/// Distinct values `spacing` apart around zero in random order, none nearer to zero than half of it: no kink
/// is near.
Array spread(std::size_t count, double spacing, std::uint64_t seed) {
  Array values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = (static_cast<double>(i) - static_cast<double>(count / 2) + 0.5) * spacing;
  for (std::size_t i = count; i-- > 1;) {
    const auto bits = random4(seed, RandomPurpose::synthetic, i, 1)[0];
    std::swap(values[i], values[uniform_below(bits, static_cast<std::uint32_t>(i + 1))]);
  }
  return values;
}

double dot(const Array& a, const Array& b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); }

using Function = std::function<double(const Array&)>;

/// Central differences of fourth order, (8·(f(h) − f(−h)) − (f(2h) − f(−2h))) / 12h: exact for polynomials up
/// to degree 4.
double slope(const Function& f, Array at, std::size_t i, double h) {
  const double middle = at[i];
  const auto shifted = [&](double by) {
    at[i] = middle + by;
    return f(at);
  };
  return (8.0 * (shifted(h) - shifted(-h)) - (shifted(2.0 * h) - shifted(-2.0 * h))) / (12.0 * h);
}

/// Rounding of f by 8·eps·sqrt(terms) of its size, divided by h; the error of order h⁴ is below 1e-11 for the
/// functions here, whose fifth derivatives are below 30·1e-11/h⁴ = 300.
void expect_gradient(const Function& f, const Array& at, const Array& gradient, double terms) {
  ASSERT_EQ(at.size(), gradient.size());
  const double tolerance = 1e-11 + 8.0 * kEps * std::sqrt(terms) * std::max(1.0, std::abs(f(at))) / kStep;
  for (std::size_t i = 0; i < at.size(); ++i) {
    ASSERT_NEAR(slope(f, at, i, kStep), gradient[i], tolerance) << "component " << i;
  }
}

std::size_t count_of(int batch, Extent extent) {
  return static_cast<std::size_t>(batch) * static_cast<std::size_t>(extent.count());
}

// ---- values, by hand
// ------------------------------------------------------------------------------------------------

TEST(ReferenceConv, CorrelatesAndPadsTheOddPlaceAtTheEnd) {
  // A single 1 at the kernel's first position moves the image by the padding before it: 1 for kernel 3, 0 for
  // kernel 2.
  const Array x{1, 2, 3, 4, 5, 6, 7, 8, 9};
  const Array first3{1, 0, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_EQ(conv_forward({1, {3, 3, 1}, 1, 3}, x, first3, {0}), (Array{0, 0, 0, 0, 1, 2, 0, 4, 5}));
  EXPECT_EQ(conv_forward({1, {3, 3, 1}, 1, 2}, x, {1, 0, 0, 0}, {0}), x);
  EXPECT_EQ(conv_forward({1, {3, 3, 1}, 1, 2}, x, {0, 0, 0, 1}, {10}),
            (Array{15, 16, 10, 18, 19, 10, 10, 10, 10}));
}

TEST(ReferenceConv, ReadsWeightsAsHeightWidthInOut) {
  // 1x1 image, kernel 1, two inputs, three outputs: y[o] = Σ x[i]·w[i][o].
  EXPECT_EQ(conv_forward({1, {1, 1, 2}, 3, 1}, {1, 10}, {1, 2, 3, 4, 5, 6}, {0, 0, 100}),
            (Array{41, 52, 163}));
  // Kernel rows are image rows: the weight at row 0, column 1 reads one row up.
  const Array up{0, 1, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_EQ(conv_forward({1, {2, 2, 1}, 1, 3}, {1, 2, 3, 4}, up, {0}), (Array{0, 0, 1, 2}));
}

TEST(ReferenceConv, PutsTheMiddleOfTheKernelOnEveryOtherPlaceFromTheFirst) {
  const Array x{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  const Array middle{0, 0, 0, 0, 1, 0, 0, 0, 0}, first{1, 0, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_EQ(conv_forward({1, {4, 4, 1}, 1, 3, 2}, x, middle, {}), (Array{1, 3, 9, 11}));
  EXPECT_EQ(conv_forward({1, {4, 4, 1}, 1, 3, 2}, x, first, {}), (Array{0, 0, 0, 6}));
}

TEST(ReferenceBatchNorm, CentresAndScalesEachChannel) {
  const Array x{1, 10, 3, 30};  // two values of two channels
  const Moments moments = moments_of(2, x);
  EXPECT_EQ(moments.mean, (Array{2, 20}));
  EXPECT_EQ(moments.variance, (Array{1, 100}));
  const model::BatchNorm layer{.name = "bn", .epsilon = 3.0f};
  EXPECT_EQ(batch_norm_forward(layer, x, {4, 1}, {5, 0}, {{2, 20}, {1, 97}}), (Array{3, -1, 7, 1}));
}

TEST(ReferenceGlobalAvgPool, AveragesEachChannel) {
  EXPECT_EQ(global_avg_pool_forward(2, {1, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8}), (Array{2, 3, 6, 7}));
}

TEST(ReferenceShortcut, TakesEveryOtherPixelAndAddsChannelsOfZero) {
  const Array x{1, 2, 3, 4, 5, 6, 7, 8, 9};
  EXPECT_EQ(shortcut_forward({"s", 2, 2}, 1, {3, 3, 1}, x), (Array{1, 0, 3, 0, 7, 0, 9, 0}));
}

TEST(ReferencePool, PadsOnlyTheEndForEvenExtentsAndBothSidesForOdd) {
  const Array six{1, 2, 3, 4, 5, 6};
  EXPECT_EQ(pool_forward({1, {1, 6, 1}, 3, 2}, six), (Array{3, 5, 6}));
  EXPECT_EQ(pool_forward({1, {1, 5, 1}, 3, 2}, {1, 2, 3, 4, 5}), (Array{2, 4, 5}));
  EXPECT_EQ(pool_forward({1, {1, 2, 1}, 3, 2}, {-1, -2}), (Array{-1}));  // padding never wins
}

TEST(ReferencePool, GivesTheGradientToTheFirstMaximum) {
  const Array ties{5, 5, 1, 5, 5, 1, 1, 1, 1};
  EXPECT_EQ(pool_grad_x({1, {3, 3, 1}, 3, 3}, ties, {7}), (Array{7, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(pool_grad_x({1, {1, 6, 1}, 3, 2}, {0, 0, 9, 0, 9, 9}, {1, 10, 100}),
            (Array{0, 0, 11, 0, 100, 0}));
}

TEST(ReferenceLrn, SumsTheChannelsNearbyAndDoesNotDivideAlpha) {
  const model::LocalResponseNorm layer{
      .name = "n", .depth_radius = 1, .bias = 2.0f, .alpha = 0.5f, .beta = 1.0f};
  const Array y = lrn_forward(layer, 3, {1, 2, 3, 4, 0, 0});
  const Array expected{1 / 4.5, 2 / 9.0, 3 / 8.5, 4 / 10.0, 0, 0};
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], expected[i], 4.0 * kEps) << i;
}

TEST(ReferenceLinear, AddsTheBiasOnce) {
  EXPECT_EQ(linear_forward({2, 2, 2}, {1, 2, 3, 4}, {1, 10, 100, 1000}, {0.5, 0.25}),
            (Array{201.5, 2010.25, 403.5, 4030.25}));
}

TEST(ReferenceSoftmax, LeavesOutLabel255) {
  const Array logits{0, 0, 3, 1, -2, 40};
  const std::uint8_t labels[] = {1, 255, 0};
  const Loss loss = softmax_cross_entropy(2, logits, labels, 8.0);
  EXPECT_EQ(loss.samples, 2.0);
  EXPECT_EQ(loss.correct, 0.0);  // the first of two equal logits is class 0, the label is 1
  EXPECT_NEAR(loss.sum, std::log(2.0) + 42.0, 4.0 * kEps * 42.0);
  EXPECT_NEAR(loss.grad_logits[0], 0.5 / 8.0, kEps);
  EXPECT_NEAR(loss.grad_logits[1], -0.5 / 8.0, kEps);
  EXPECT_EQ(loss.grad_logits[2], 0.0);
  EXPECT_EQ(loss.grad_logits[3], 0.0);
  EXPECT_NEAR(loss.probabilities[2], 1.0 / (1.0 + std::exp(-2.0)), 2.0 * kEps);
}

TEST(ReferenceSoftmax, StaysFiniteForLargeLogits) {
  const std::uint8_t labels[] = {0};
  const Loss loss = softmax_cross_entropy(3, {-2000.0, 0.0, 1000.0}, labels, 1.0);
  EXPECT_EQ(loss.sum, 3000.0);
  EXPECT_EQ(loss.grad_logits, (Array{-1.0, 0.0, 1.0}));
}

// ---- gradients, by central differences
// -------------------------------------------------------------------------------

void check_conv(const ConvShape& shape) {
  const Array x = uniform(count_of(shape.batch, shape.in), 1);
  const auto weight_count =
      static_cast<std::size_t>(shape.kernel * shape.kernel * shape.in.channels * shape.out_channels);
  const Array weights = uniform(weight_count, 2);
  const Array biases = uniform(static_cast<std::size_t>(shape.out_channels), 3);
  const Array grad_y = uniform(conv_forward(shape, x, weights, biases).size(), 4);
  const auto terms = static_cast<double>(grad_y.size() * weights.size() / biases.size());
  expect_gradient([&](const Array& v) { return dot(conv_forward(shape, v, weights, biases), grad_y); }, x,
                  conv_grad_x(shape, weights, grad_y), terms);
  expect_gradient([&](const Array& v) { return dot(conv_forward(shape, x, v, biases), grad_y); }, weights,
                  conv_grad_weights(shape, x, grad_y), terms);
  expect_gradient([&](const Array& v) { return dot(conv_forward(shape, x, weights, v), grad_y); }, biases,
                  grad_biases(shape.out_channels, grad_y), terms);
}

TEST(ReferenceConv, GradientsMatchCentralDifferences) {
  check_conv({2, {5, 4, 3}, 2, 3});
  check_conv({1, {4, 6, 2}, 3, 5});
  check_conv({2, {3, 3, 2}, 2, 2});  // even kernel: padded after it only
  check_conv({1, {2, 3, 1}, 2, 5});  // kernel larger than the image
  check_conv({2, {6, 5, 2}, 2, 3, 2});
  check_conv({1, {7, 4, 1}, 2, 1, 3});
  check_conv({2, {4, 5, 2}, 3, 2, 1, true});
  check_conv({1, {7, 6, 2}, 2, 3, 2, true});
}

TEST(ReferenceLinear, GradientsMatchCentralDifferences) {
  const LinearShape shape{3, 5, 4};
  const Array x = uniform(15, 1), weights = uniform(20, 2), biases = uniform(4, 3), grad_y = uniform(12, 4);
  expect_gradient([&](const Array& v) { return dot(linear_forward(shape, v, weights, biases), grad_y); }, x,
                  linear_grad_x(shape, weights, grad_y), 72);
  expect_gradient([&](const Array& v) { return dot(linear_forward(shape, x, v, biases), grad_y); }, weights,
                  linear_grad_weights(shape, x, grad_y), 72);
  expect_gradient([&](const Array& v) { return dot(linear_forward(shape, x, weights, v), grad_y); }, biases,
                  grad_biases(4, grad_y), 72);
}

TEST(ReferencePool, GradientMatchesCentralDifferences) {
  for (const PoolShape& shape :
       {PoolShape{2, {6, 4, 3}, 3, 2}, PoolShape{1, {5, 7, 2}, 3, 2}, PoolShape{1, {4, 4, 1}, 2, 1},
        PoolShape{1, {7, 5, 1}, 2, 3}, PoolShape{1, {5, 7, 2}, 2, 2, true}}) {
    const Array x = spread(count_of(shape.batch, shape.in), 8.0 * kStep, 5);
    const Array grad_y = uniform(pool_forward(shape, x).size(), 6);
    expect_gradient([&](const Array& v) { return dot(pool_forward(shape, v), grad_y); }, x,
                    pool_grad_x(shape, x, grad_y), static_cast<double>(grad_y.size()));
  }
}

TEST(ReferenceBatchNorm, GradientsMatchCentralDifferences) {
  const model::BatchNorm layer{.name = "bn", .epsilon = 0.1f};
  const Array x = uniform(7 * 3, 12), scale = uniform(3, 13), biases = uniform(3, 14),
              grad_y = uniform(7 * 3, 15);
  const auto loss = [&](const Array& at, const Array& s, const Array& b) {
    return dot(batch_norm_forward(layer, at, s, b, moments_of(3, at)), grad_y);
  };
  const BatchNormGrads grads = batch_norm_backward(layer, x, scale, grad_y);
  expect_gradient([&](const Array& v) { return loss(v, scale, biases); }, x, grads.x, 21);
  expect_gradient([&](const Array& v) { return loss(x, v, biases); }, scale, grads.scale, 21);
  expect_gradient([&](const Array& v) { return loss(x, scale, v); }, biases, grads.biases, 21);
}

TEST(ReferenceGlobalAvgPool, GradientMatchesCentralDifferences) {
  const Extent in{2, 3, 4};
  const Array x = uniform(2 * 24, 16), grad_y = uniform(8, 17);
  expect_gradient([&](const Array& v) { return dot(global_avg_pool_forward(2, in, v), grad_y); }, x,
                  global_avg_pool_grad_x(2, in, grad_y), 48);
}

TEST(ReferenceShortcut, GradientMatchesCentralDifferences) {
  const model::Shortcut layer{"s", 5, 2};
  const Extent in{3, 4, 2};
  const Array x = uniform(2 * 24, 18), grad_y = uniform(2 * 2 * 2 * 5, 19);
  expect_gradient([&](const Array& v) { return dot(shortcut_forward(layer, 2, in, v), grad_y); }, x,
                  shortcut_grad_x(layer, 2, in, grad_y), 48);
}

TEST(ReferenceRelu, GradientMatchesCentralDifferences) {
  const Array x = spread(40, 8.0 * kStep, 7), grad_y = uniform(40, 8);
  expect_gradient([&](const Array& v) { return dot(relu_forward(v), grad_y); }, x, relu_grad_x(x, grad_y),
                  40);
  EXPECT_EQ(relu_grad_x(relu_forward(x), grad_y), relu_grad_x(x, grad_y));
}

TEST(ReferencePointwise, GradientMatchesCentralDifferences) {
  Array x = uniform(40, 20);
  const Array grad_y = uniform(40, 21);
  for (double& value : x) value *= 4.0;
  for (const model::Pointwise& layer :
       {model::Pointwise{model::PointwiseKind::silu}, model::Pointwise{model::PointwiseKind::gelu},
        model::Pointwise{model::PointwiseKind::scale, 0.3f}}) {
    expect_gradient([&](const Array& v) { return dot(pointwise_forward(layer, v), grad_y); }, x,
                    pointwise_grad_x(layer, x, grad_y), 4.0 * 40);
  }
}

TEST(ReferencePointwise, HasKnownValues) {
  const Array x{-1.0, 0.0, 2.0};
  const Array silu = pointwise_forward({model::PointwiseKind::silu}, x);
  EXPECT_NEAR(silu[0], -0.2689414213699951, 4.0 * kEps);
  EXPECT_EQ(silu[1], 0.0);
  EXPECT_NEAR(silu[2], 1.7615941559557649, 4.0 * kEps);
  const Array gelu = pointwise_forward({model::PointwiseKind::gelu}, x);
  EXPECT_NEAR(gelu[0], -0.15865525393145707, 4.0 * kEps);
  EXPECT_NEAR(gelu[2], 1.9544997361036416, 4.0 * kEps);
}

TEST(ReferenceLrn, GradientMatchesCentralDifferences) {
  const Array x = uniform(4 * 12, 9), grad_y = uniform(4 * 12, 10);
  for (const model::LocalResponseNorm& layer :
       {model::LocalResponseNorm{
            .name = "tutorial", .depth_radius = 4, .bias = 1.0f, .alpha = 0.001f / 9.0f, .beta = 0.75f},
        model::LocalResponseNorm{
            .name = "strong", .depth_radius = 2, .bias = 2.0f, .alpha = 0.5f, .beta = 0.6f}}) {
    expect_gradient([&](const Array& v) { return dot(lrn_forward(layer, 12, v), grad_y); }, x,
                    lrn_grad_x(layer, 12, x, grad_y), 48 * 9);
  }
}

TEST(ReferenceSoftmax, GradientMatchesCentralDifferences) {
  const Array logits = uniform(4 * 5, 11);
  const std::uint8_t labels[] = {0, 4, 255, 2};
  const auto mean = [&](const Array& v) { return softmax_cross_entropy(5, v, labels, 12.0).sum / 12.0; };
  expect_gradient(mean, logits, softmax_cross_entropy(5, logits, labels, 12.0).grad_logits, 20);
  const auto smoothed = [&](const Array& v) {
    return softmax_cross_entropy(5, v, labels, 12.0, 0.3).sum / 12.0;
  };
  expect_gradient(smoothed, logits, softmax_cross_entropy(5, logits, labels, 12.0, 0.3).grad_logits, 20);
}

TEST(ReferenceSoftmax, SpreadsAShareOfTheTarget) {
  // Probabilities 1/2, 1/4, 1/4; the target of class 1 smoothed by 0.3 is 0.1, 0.8, 0.1.
  const std::uint8_t labels[] = {1};
  const Loss loss = softmax_cross_entropy(3, {std::log(2.0), 0.0, 0.0}, labels, 1.0, 0.3);
  EXPECT_NEAR(loss.sum, 0.1 * std::log(2.0) + 0.9 * std::log(4.0), 4.0 * kEps);
  EXPECT_NEAR(loss.grad_logits[0], 0.5 - 0.1, 4.0 * kEps);
  EXPECT_NEAR(loss.grad_logits[1], 0.25 - 0.8, 4.0 * kEps);
  EXPECT_NEAR(loss.grad_logits[2], 0.25 - 0.1, 4.0 * kEps);
}

}  // namespace
}  // namespace cifar_mpi::reference
