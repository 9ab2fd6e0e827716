#include "cpu/batch_norm.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "cifar_mpi/base/random.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cpu/blocked.hpp"
#include "cpu/simd.hpp"
#include "cpu/task_runs.hpp"
#include "reference/reference.hpp"

namespace cifar_mpi::cpu {
namespace {

using engine::Precision;
using reference::Array;
using reference::relative_distance;
using testing::count_of;
using testing::from_memory;
using testing::in_memory;
using testing::kBf16Unit;
using testing::kFp32Unit;

constexpr float kEpsilon = 1e-3f;
constexpr float kShare = 0.25f;

Array drawn(std::size_t count, double middle, double deviation, std::uint64_t seed) {
  Array values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const double uniform = uniform01(random4(seed, RandomPurpose::synthetic, i, 0)[0]);
    values[i] = middle + deviation * std::sqrt(12.0) * (uniform - 0.5);
  }
  return values;
}

struct Case {
  BatchNormShape shape;
  Precision precision = Precision::fp32;
  Activation then = Activation::none;
  double middle = 0.3;  ///< of x, whose deviation is 1
};

/// One layer with its memory, run forward and backward.
struct NormRun {
  explicit NormRun(const Case& chosen) : c(chosen) {
    const auto channels = static_cast<std::size_t>(c.shape.channels);
    x = lattice::rounded(drawn(count_of(c.shape), c.middle, 1.0, 1), c.precision);
    grad_y = lattice::rounded(drawn(count_of(c.shape), 0.1, 1.0, 2), c.precision);
    const Array s = lattice::rounded(drawn(channels, 0.8, 0.3, 3), Precision::fp32),
                b = lattice::rounded(drawn(channels, 0.1, 0.3, 4), Precision::fp32);
    scale.assign(s.begin(), s.end());
    biases.assign(b.begin(), b.end());
    for (auto* const values : {&mean, &variance, &grad_scale, &grad_biases}) values->resize(channels);
    moments.resize(moments_floats(c.shape));
    partials.resize(partials_floats(c.shape));
    src = in_memory(c.shape, c.shape.src_block, c.precision, x);
    grad_dst = in_memory(c.shape, c.shape.dst_block, c.precision, grad_y);
    dst.assign(src.size(), std::byte{0xFF});
    grad_src.assign(src.size(), std::byte{0xFF});
  }

  BatchNormLayer layer() const {
    return {"bn", c.shape, c.precision, kEpsilon, c.then, scale.data(), biases.data()};
  }
  engine::Task forward() {
    return plan_batch_norm_forward(layer(), forward_memory(), mean.data(), variance.data(), kShare);
  }
  BatchNormForward forward_memory() {
    return {src.data(), nullptr, dst.data(), moments.data(), partials.data()};
  }
  BatchNormBackward backward_memory(std::byte* to) {
    BatchNormBackward memory;
    memory.src = src.data();
    memory.grad_dst = grad_dst.data();
    memory.moments = moments.data();
    memory.partials = partials.data();
    memory.grad_scale = grad_scale.data();
    memory.grad_biases = grad_biases.data();
    memory.grad_src = to;
    if (c.then == Activation::silu) memory.joined = to;
    return memory;
  }
  engine::Task backward(std::byte* to) { return plan_batch_norm_backward(layer(), backward_memory(to)); }
  Array y() const { return from_memory(c.shape, c.shape.dst_block, c.precision, dst); }
  Array grad_x() const { return from_memory(c.shape, c.shape.src_block, c.precision, grad_src); }

  Case c;
  Array x, grad_y;
  std::vector<float> scale, biases, mean, variance, moments, partials, grad_scale, grad_biases;
  std::vector<std::byte> src, dst, grad_dst, grad_src;
};

Array widened(const std::vector<float>& values) { return {values.begin(), values.end()}; }

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    for (const Activation then : {Activation::none, Activation::relu, Activation::silu}) {
      for (const int src : {1, 8, 16, 32}) {
        for (const int dst : {8, 16, 32}) all.push_back({{3, 13, 32, src, dst}, precision, then});
      }
      for (const int pixels : {8, 14}) all.push_back({{3, pixels, 32, 16, 16}, precision, then});
      all.push_back({{2, 5, 5, 5, 5}, precision, then});
      all.push_back({{6, 1, 24, 24, 8}, precision, then});
    }
  }
  all.push_back({{4, 9, 16, 16, 16}, Precision::fp32, Activation::none, 1000.0});
  return all;
}

std::string text(const Case& c) {
  return concat(c.shape.batch, "x", c.shape.pixels, "x", c.shape.channels, ", blocks ", c.shape.src_block,
                " and ", c.shape.dst_block, ", ", to_string(c.precision),
                c.then == Activation::relu ? ", ReLU" : "", c.then == Activation::silu ? ", SiLU" : "");
}

Array activated(const Array& x, Activation then) {
  if (then == Activation::relu) return reference::relu_forward(x);
  return then == Activation::silu ? reference::pointwise_forward({model::PointwiseKind::silu}, x) : x;
}
Array activation_grad_x(const Array& x, const Array& grad_y, Activation then) {
  if (then == Activation::relu) return reference::relu_grad_x(x, grad_y);
  return then == Activation::silu ? reference::pointwise_grad_x({model::PointwiseKind::silu}, x, grad_y)
                                  : grad_y;
}

TEST(BatchNorm, NormalizesAsTheReference) {
  const model::BatchNorm spec{.name = "bn", .epsilon = kEpsilon};
  for (const Case& c : cases()) {
    NormRun run(c);
    testing::run_audited(run.forward(), {{run.src.data(), run.src.size()}});
    const reference::Moments wanted = reference::moments_of(c.shape.channels, run.x);
    Array y = reference::batch_norm_forward(spec, run.x, widened(run.scale), widened(run.biases), wanted);
    y = activated(y, c.then);
    // x − mean is exact to a rounding of the mean, which is that of its own size.
    const double fp32 = 4.0 * kFp32Unit * (1.0 + std::abs(c.middle));
    EXPECT_LE(relative_distance(run.y(), y), fp32 + (c.precision == Precision::bf16 ? kBf16Unit : 0.0))
        << text(c);
    for (std::size_t i = 0; i < run.mean.size(); ++i) {
      EXPECT_NEAR(run.mean[i], kShare * wanted.mean[i], 8.0 * kFp32Unit * (1.0 + std::abs(c.middle)))
          << text(c);
      // An image's mean is rounded, and its distance from the batch's, below 1, is squared.
      const double rounded = 2.0 * kFp32Unit * std::abs(c.middle) + 16.0 * kFp32Unit * wanted.variance[i];
      EXPECT_NEAR(run.variance[i], kShare * wanted.variance[i], kShare * rounded) << text(c);
    }
  }
}

TEST(BatchNorm, HasTheReferenceGradients) {
  const model::BatchNorm spec{.name = "bn", .epsilon = kEpsilon};
  for (const Case& c : cases()) {
    NormRun run(c);
    testing::run(run.forward());
    testing::run(run.backward(run.grad_src.data()));
    const reference::Moments moments = reference::moments_of(c.shape.channels, run.x);
    const Array y =
        reference::batch_norm_forward(spec, run.x, widened(run.scale), widened(run.biases), moments);
    const Array grad_y = lattice::rounded(activation_grad_x(y, run.grad_y, c.then), c.precision);
    const auto wanted = reference::batch_norm_backward(spec, run.x, widened(run.scale), grad_y);
    const bool silu = c.then == Activation::silu;
    const double fp32 = 16.0 * kFp32Unit * (1.0 + std::abs(c.middle)),
                 unit = c.precision == Precision::bf16 ? kBf16Unit : 0.0;
    EXPECT_LE(relative_distance(run.grad_x(), wanted.x), fp32 + unit) << text(c);
    // With a SiLU g is rounded; a few values round the other way than in the reference.
    const double sums = fp32 + (silu ? unit : 0.0);
    EXPECT_LE(relative_distance(widened(run.grad_scale), wanted.scale), sums) << text(c);
    EXPECT_LE(relative_distance(widened(run.grad_biases), wanted.biases), sums) << text(c);

    if (silu && c.shape.src_block != c.shape.dst_block) continue;
    const Array apart = run.grad_x();
    std::vector<std::byte>& place = silu ? run.grad_dst : run.src;
    testing::run(run.backward(place.data()));
    EXPECT_EQ(from_memory(c.shape, c.shape.src_block, c.precision, place), apart) << "in place, " << text(c);
  }
}

TEST(BatchNorm, AddsAnotherValueInFrontOfTheRelu) {
  const model::BatchNorm spec{.name = "bn", .epsilon = kEpsilon};
  for (Case c : cases()) {
    if (c.then != Activation::relu) continue;
    NormRun run(c);
    const Array other = lattice::rounded(drawn(count_of(c.shape), -0.2, 1.0, 5), c.precision);
    const std::vector<std::byte> other_bytes = in_memory(c.shape, c.shape.dst_block, c.precision, other);
    BatchNormForward memory = run.forward_memory();
    memory.other = other_bytes.data();
    testing::run_audited(
        plan_batch_norm_forward(run.layer(), memory, run.mean.data(), run.variance.data(), kShare),
        {{run.src.data(), run.src.size()}, testing::region(other_bytes)});
    const reference::Moments moments = reference::moments_of(c.shape.channels, run.x);
    Array y = reference::batch_norm_forward(spec, run.x, widened(run.scale), widened(run.biases), moments);
    for (std::size_t i = 0; i < y.size(); ++i) y[i] += other[i];
    y = reference::relu_forward(y);
    const double unit = c.precision == Precision::bf16 ? kBf16Unit : kFp32Unit;
    EXPECT_LE(relative_distance(run.y(), y), 8.0 * unit) << text(c);
  }
}

TEST(BatchNorm, JoinsTwoGradientsAfterTheMaskOfASum) {
  const model::BatchNorm spec{.name = "bn", .epsilon = kEpsilon};
  for (const Case& c : cases()) {
    if (c.then != Activation::relu) continue;
    for (const bool two : {false, true}) {
      NormRun run(c);
      testing::run(run.forward());  // for the moments; y is drawn
      const Array y = lattice::rounded(drawn(count_of(c.shape), 0.1, 1.0, 6), c.precision);
      const Array more = lattice::rounded(drawn(count_of(c.shape), 0.3, 1.0, 7), c.precision);
      run.dst = in_memory(c.shape, c.shape.dst_block, c.precision, y);
      std::vector<std::byte> more_bytes = in_memory(c.shape, c.shape.dst_block, c.precision, more);
      BatchNormBackward memory = run.backward_memory(run.grad_src.data());
      memory.dst = run.dst.data();
      memory.joined = run.grad_dst.data();
      if (two) memory.more_grad_dst = more_bytes.data();
      testing::run_audited(plan_batch_norm_backward(run.layer(), memory), {{run.src.data(), run.src.size()},
                                                                           testing::region(run.dst),
                                                                           testing::region(more_bytes),
                                                                           testing::region(run.grad_dst)});
      Array grad = run.grad_y;
      for (std::size_t i = 0; i < grad.size(); ++i)
        grad[i] = y[i] > 0.0 ? grad[i] + (two ? more[i] : 0.0) : 0.0;
      const Array joined = from_memory(c.shape, c.shape.dst_block, c.precision, run.grad_dst);
      EXPECT_EQ(joined, lattice::rounded(grad, c.precision)) << text(c);
      const auto wanted = reference::batch_norm_backward(spec, run.x, widened(run.scale), joined);
      const double fp32 = 16.0 * kFp32Unit * (1.0 + std::abs(c.middle));
      EXPECT_LE(relative_distance(run.grad_x(), wanted.x),
                fp32 + (c.precision == Precision::bf16 ? kBf16Unit : 0.0))
          << text(c);
      EXPECT_LE(relative_distance(widened(run.grad_scale), wanted.scale), fp32) << text(c);
      EXPECT_LE(relative_distance(widened(run.grad_biases), wanted.biases), fp32) << text(c);
    }
  }
}

TEST(BatchNorm, TakesGivenStatisticsInEvaluation) {
  for (const Activation then : {Activation::relu, Activation::silu}) {
    NormRun run({{2, 5, 16, 16, 16}, Precision::fp32, then});
    for (std::size_t i = 0; i < run.mean.size(); ++i) {
      run.mean[i] = 0.1f * static_cast<float>(i);
      run.variance[i] = 1.0f + static_cast<float>(i);
    }
    testing::run(
        plan_batch_norm_inference(run.layer(), run.forward_memory(), run.mean.data(), run.variance.data()));
    const Array normalized =
        reference::batch_norm_forward({.name = "bn", .epsilon = kEpsilon}, run.x, widened(run.scale),
                                      widened(run.biases), {widened(run.mean), widened(run.variance)});
    EXPECT_LE(relative_distance(run.y(), activated(normalized, then)), 8.0 * kFp32Unit);
  }
}

struct Limited {
  explicit Limited(VectorSet most) { limit_vectors(most); }
  ~Limited() { limit_vectors(VectorSet::avx512); }
};

TEST(BatchNorm, HasTheSameBitsInAnyLayout) {
  for (const VectorSet set : vector_sets_here()) {
    const Limited limited(set);
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      for (const Activation then : {Activation::relu, Activation::silu}) {
        const auto results = [&](int block, int pixels) {
          NormRun run({{3, pixels, 32, block, block}, precision, then});
          testing::run(run.forward());
          testing::run(run.backward(run.grad_src.data()));
          return std::vector<Array>{run.y(),
                                    run.grad_x(),
                                    widened(run.mean),
                                    widened(run.variance),
                                    widened(run.grad_scale),
                                    widened(run.grad_biases)};
        };
        for (const int pixels : {12, 13}) {
          const std::vector<Array> wanted = results(1, pixels);
          for (const int block : {4, 8, 16, 32})
            EXPECT_EQ(results(block, pixels), wanted)
                << name_of(set) << ", " << to_string(precision) << ", block " << block;
        }
      }
    }
  }
}

TEST(BatchNorm, KeepsNaN) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    for (const auto& [pixels, then] : {std::pair{3, Activation::relu},
                                       {4, Activation::relu},
                                       {3, Activation::silu},
                                       {4, Activation::silu}}) {
      NormRun run({{2, pixels, 16, 16, 16}, precision, then});
      run.x[5] = std::numeric_limits<double>::quiet_NaN();
      run.src = in_memory(run.c.shape, 16, precision, run.x);
      run.biases[7] = std::bit_cast<float>(0x7FFFFFFFu);  // the next number would be −0
      testing::run(run.forward());
      EXPECT_TRUE(std::isnan(run.y()[5]));
      EXPECT_TRUE(std::isnan(run.y()[7]));
      EXPECT_TRUE(std::isnan(run.mean[5]));
      EXPECT_FALSE(std::isnan(run.y()[4]));
    }
  }
}

}  // namespace
}  // namespace cifar_mpi::cpu
