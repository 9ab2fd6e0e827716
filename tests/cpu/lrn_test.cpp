#include "cpu/lrn.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cpu/blocked.hpp"
#include "cpu/task_runs.hpp"
#include "reference/reference.hpp"

namespace cifar_mpi::cpu {
namespace {

using engine::Precision;
using model::LocalResponseNorm;
using reference::Array;
using testing::count_of;
using testing::kBf16Unit;
using testing::kFp32Unit;

/// An activation in memory, of either element type; its values are dense.
class Activation {
 public:
  Activation(const LrnShape& shape, int block, Precision precision)
      : shape_(shape),
        block_(block),
        precision_(precision),
        bytes_(count_of(shape) * lattice::bytes_per_value(precision), std::byte{0xFF}) {}

  std::byte* data() { return bytes_.data(); }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  void set(const std::vector<float>& values) {
    bytes_ = testing::in_memory(shape_, block_, precision_, {values.begin(), values.end()});
  }
  Array get() const { return testing::from_memory(shape_, block_, precision_, bytes_); }

 private:
  LrnShape shape_;
  int block_;
  Precision precision_;
  std::vector<std::byte> bytes_;
};

struct LrnCase {
  LocalResponseNorm layer;
  LrnShape shape;
  Precision precision = Precision::fp32;
};

std::string lrn_text(const LrnCase& c) {
  return concat(c.shape.channels, " channels, ", c.shape.pixels, " pixels, block ", c.shape.src_block, " to ",
                c.shape.dst_block, ", radius ", c.layer.depth_radius, ", bias ", c.layer.bias, ", beta ",
                c.layer.beta, ", ", to_string(c.precision));
}

/// Both element types, every pair of block sizes that oneDNN gives, exponents with and without a fast path.
std::vector<LrnCase> lrn_cases() {
  std::vector<LrnCase> all;
  const auto add = [&](const LocalResponseNorm& layer, const LrnShape& shape) {
    for (const Precision precision : {Precision::fp32, Precision::bf16})
      all.push_back({layer, shape, precision});
  };
  const LocalResponseNorm tutorial{"lrn", 4, 1.0f, 0.3f, 0.75f};
  for (const int src : {1, 8, 16, 64}) {
    for (const int dst : {1, 8, 16, 64}) add(tutorial, {2, 19, 64, src, dst});
  }
  for (const int src : {1, 8, 16}) add(tutorial, {2, 16, 16, src, 16});
  for (const int channels : {32, 128}) {  // with 16 and 64, all channel counts of the register versions
    for (const int src : {16, channels}) add(tutorial, {2, 7, channels, src, channels});
  }
  for (const int src : {1, 5}) {
    for (const int dst : {1, 5}) add(tutorial, {3, 7, 5, src, dst});
  }
  add(tutorial, {1, 33, 24, 8, 24});
  add(tutorial, {1, 3, 1500, 1500, 1});  // a tile of one pixel
  for (const float beta : {0.5f, 0.75f, 1.0f}) {
    for (const int radius : {0, 1, 2, 4, 17}) add({"lrn", radius, 2.0f, 0.1f, beta}, {2, 21, 16, 16, 8});
  }
  add({"lrn", 4, 0.0f, 1.0f, 0.75f}, {2, 9, 5, 5, 5});  // bias 0: padding lanes must not yield NaN
  return all;
}

/// Operations between input and result of one window, each with one rounding.
double roundings(const LocalResponseNorm& layer) { return 2.0 * (2.0 * layer.depth_radius + 1.0) + 16.0; }

TEST(LrnForward, EqualsTheReferenceForAnyBlockSizeAndElementType) {
  for (const LrnCase& c : lrn_cases()) {
    SCOPED_TRACE(lrn_text(c));
    Activation src(c.shape, c.shape.src_block, c.precision), dst(c.shape, c.shape.dst_block, c.precision);
    src.set(testing::noise_of(count_of(c.shape), 1, 2.0f));
    testing::run_audited(plan_lrn_forward("lrn", c.layer, c.shape, c.precision, src.data(), dst.data()),
                         {testing::region(src.bytes()), testing::region(dst.bytes())});
    const Array wanted = reference::lrn_forward(c.layer, c.shape.channels, src.get());
    const Array found = dst.get();
    const double unit = roundings(c.layer) * kFp32Unit + (c.precision == Precision::bf16 ? kBf16Unit : 0.0);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      ASSERT_NEAR(found[i], wanted[i], unit * std::abs(wanted[i])) << "at " << i;
    }
  }
}

/// |g_c|·s_c^(−beta) + 2·alpha·beta·|x_c|·Σ |g·x|·s^(−beta−1): what rounding errors of the gradient are
/// relative to.
Array gradient_magnitude(const LrnCase& c, const Array& x, const Array& g) {
  const int channels = c.shape.channels, radius = c.layer.depth_radius;
  Array base(x.size()), magnitude(x.size());
  const auto each = [&](auto visit) {
    for (std::size_t pixel = 0; pixel < x.size(); pixel += static_cast<std::size_t>(channels)) {
      for (int i = 0; i < channels; ++i) {
        for (int j = std::max(0, i - radius); j <= std::min(channels - 1, i + radius); ++j)
          visit(pixel + i, pixel + j);
      }
    }
  };
  each([&](std::size_t i, std::size_t j) { base[i] += c.layer.alpha * x[j] * x[j]; });
  for (double& s : base) s += c.layer.bias;
  each([&](std::size_t i, std::size_t j) {
    magnitude[i] += 2.0 * c.layer.alpha * c.layer.beta * std::abs(x[i] * g[j] * x[j]) *
                    std::pow(base[j], -c.layer.beta - 1);
  });
  for (std::size_t i = 0; i < x.size(); ++i)
    magnitude[i] += std::abs(g[i]) * std::pow(base[i], -c.layer.beta);
  return magnitude;
}

void expect_backward(const LrnCase& c, const std::vector<float>& x_values, bool mask_relu) {
  SCOPED_TRACE(lrn_text(c));
  Activation src(c.shape, c.shape.src_block, c.precision), grad_src(c.shape, c.shape.src_block, c.precision);
  Activation grad_dst(c.shape, c.shape.dst_block, c.precision);
  src.set(x_values);
  grad_dst.set(testing::noise_of(count_of(c.shape), 2));
  testing::run_audited(
      plan_lrn_backward("lrn", c.layer, c.shape, c.precision, src.data(), grad_dst.data(), grad_src.data(),
                        mask_relu),
      {testing::region(src.bytes()), testing::region(grad_dst.bytes()), testing::region(grad_src.bytes())});
  const Array x = src.get(), g = grad_dst.get(), found = grad_src.get();
  Array wanted = reference::lrn_grad_x(c.layer, c.shape.channels, x, g);
  const Array magnitude = gradient_magnitude(c, x, g);
  const double result_unit = c.precision == Precision::bf16 ? kBf16Unit : 0.0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (mask_relu && x[i] <= 0.0) wanted[i] = 0.0;
    const double tolerance = wanted[i] == 0.0 ? 0.0 : 2.0 * roundings(c.layer) * kFp32Unit * magnitude[i];
    ASSERT_NEAR(found[i], wanted[i], tolerance * (1.0 + result_unit) + result_unit * std::abs(wanted[i]))
        << "at " << i;
  }
}

TEST(LrnBackward, EqualsTheReferenceForAnyBlockSizeAndElementType) {
  for (const LrnCase& c : lrn_cases())
    expect_backward(c, testing::noise_of(count_of(c.shape), 1, 2.0f), false);
}

TEST(LrnBackward, WithTheMaskIsZeroWhereTheReluGaveZero) {
  for (const LrnCase& c : lrn_cases()) {
    std::vector<float> x = testing::noise_of(count_of(c.shape), 3, 2.0f);
    for (std::size_t i = 0; i < x.size(); i += 3) x[i] = 0.0f;
    expect_backward(c, x, true);
  }
}

TEST(LrnBackward, MayReplaceItsSource) {
  for (const LrnCase& c : lrn_cases()) {
    SCOPED_TRACE(lrn_text(c));
    Activation src(c.shape, c.shape.src_block, c.precision), apart(c.shape, c.shape.src_block, c.precision);
    Activation grad_dst(c.shape, c.shape.dst_block, c.precision);
    src.set(testing::noise_of(count_of(c.shape), 9, 2.0f));
    grad_dst.set(testing::noise_of(count_of(c.shape), 10));
    for (Activation* const to : {&apart, &src}) {
      testing::run(plan_lrn_backward("lrn", c.layer, c.shape, c.precision, src.data(), grad_dst.data(),
                                     to->data(), true));
    }
    EXPECT_EQ(src.bytes(), apart.bytes());
  }
}

TEST(LrnBackward, IsFiniteBesideLanesThatAreNoChannelWithoutABias) {
  const LrnCase c{{"lrn", 4, 0.0f, 1.0f, 0.75f}, {2, 9, 5, 5, 5}};
  std::vector<float> x = testing::noise_of(count_of(c.shape), 8, 2.0f);
  for (std::size_t i = 4; i < x.size(); i += 5) x[i] = 0.0f;  // the lane four after it has s = 0
  expect_backward(c, x, false);
}

TEST(LrnBackward, LeavesTheSameBitsWithAnyNumberOfThreads) {
  const LrnCase c{{"lrn", 4, 1.0f, 0.3f, 0.75f}, {7, 19, 64, 16, 64}};
  std::vector<std::byte> first;
  for (const int threads : {1, 2, 3}) {
    const testing::Threads with(threads);
    Activation src(c.shape, 16, c.precision), y(c.shape, 64, c.precision), grad_src(c.shape, 16, c.precision);
    src.set(testing::noise_of(count_of(c.shape), 6, 2.0f));
    testing::run(plan_lrn_forward("lrn", c.layer, c.shape, c.precision, src.data(), y.data()));
    testing::run(
        plan_lrn_backward("lrn", c.layer, c.shape, c.precision, src.data(), y.data(), grad_src.data(), true));
    if (first.empty()) first = grad_src.bytes();
    EXPECT_EQ(grad_src.bytes(), first) << threads << " threads";
  }
}

TEST(Lrn, RefusesShapesThatDoNotFit) {
  const LocalResponseNorm layer{"lrn", 4, 1.0f, 0.3f, 0.75f};
  EXPECT_THROW(plan_lrn_forward("lrn", layer, {1, 4, 20, 16, 20}, Precision::fp32, nullptr, nullptr),
               std::logic_error);
  EXPECT_THROW(plan_lrn_forward("lrn", layer, {1, 4, 2100, 1, 1}, Precision::fp32, nullptr, nullptr), Error);
}

}  // namespace
}  // namespace cifar_mpi::cpu
