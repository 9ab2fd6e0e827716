#include "cpu/image_conv/image_conv.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "cifar_mpi/base/text.hpp"
#include "cpu/bf16.hpp"
#include "cpu/lattice.hpp"
#include "cpu/network_run.hpp"
#include "cpu/task_runs.hpp"

/// The passes of the convolution that reads the images against the double-precision loops.
namespace cifar_mpi::cpu {
namespace {

using engine::ConvMethod;
using engine::Precision;
using reference::Array;

struct ImageConvCase {
  int batch;
  Extent in;
  int out_channels;
  int kernel;
  int pool_kernel;
  int pool_stride;
  bool relu = true;
  bool biases = true;
};

void PrintTo(const ImageConvCase& c, std::ostream* out) {
  *out << c.batch << "x" << to_string(c.in) << " to " << c.out_channels << ", kernel " << c.kernel
       << ", pooling " << c.pool_kernel << "/" << c.pool_stride << (c.relu ? ", relu" : "")
       << (c.biases ? "" : ", no biases");
}

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<std::byte> as_bytes(const Array& values, Precision precision) {
  const std::size_t each = lattice::bytes_per_value(precision);
  std::vector<std::byte> bytes(values.size() * each);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto value = static_cast<float>(values[i]);
    const bf16 half = to_bf16(value);
    std::memcpy(&bytes[i * each], precision == Precision::bf16 ? static_cast<const void*>(&half) : &value,
                each);
  }
  return bytes;
}

Array values_in(const std::vector<std::byte>& bytes, Precision precision) {
  const std::size_t each = lattice::bytes_per_value(precision);
  Array values(bytes.size() / each);
  for (std::size_t i = 0; i < values.size(); ++i) {
    float value = 0.0f;
    bf16 half;
    std::memcpy(precision == Precision::bf16 ? static_cast<void*>(&half) : &value, &bytes[i * each], each);
    values[i] = precision == Precision::bf16 ? to_float(half) : value;
  }
  return values;
}

/// One image after the other from [height][width][channel] to [channel][height][width].
Array planes_of(const Array& x, const Extent& in) {
  Array planes(x.size());
  const std::size_t pixels = static_cast<std::size_t>(in.height * in.width),
                    channels = static_cast<std::size_t>(in.channels);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t image = i / (pixels * channels), pixel = i / channels % pixels, c = i % channels;
    planes[(image * channels + c) * pixels + pixel] = x[i];
  }
  return planes;
}

/// A convolution with its operands and the results of the passes.
struct ImageConvFixture {
  using Values = Array (*)(std::size_t count, std::uint32_t salt);

  ImageConvFixture(const ImageConvCase& c, VectorSet set, Precision precision, Values values, int threads = 1)
      : with_biases(c.biases),
        conv_shape{c.batch, c.in, c.out_channels, c.kernel},
        pool_shape{c.batch, {c.in.height, c.in.width, c.out_channels}, c.pool_kernel, c.pool_stride} {
    conv.shape = {c.in, c.out_channels, c.kernel, c.pool_kernel, c.pool_stride, c.relu};
    conv.precision = precision;
    conv.batch = c.batch;
    conv.threads = threads;
    use(set);
    x = lattice::rounded(values(static_cast<std::size_t>(c.batch) * conv.shape.image_values(), 1), precision);
    weights = lattice::rounded(values(conv.shape.weight_floats(), 2), precision);
    if (c.biases) biases = values(static_cast<std::size_t>(c.out_channels), 3);
    if (c.biases) biases = lattice::rounded(std::move(biases), Precision::fp32);
    y = lattice::rounded(reference::conv_forward(conv_shape, x, weights, biases), precision);
    if (c.relu) y = reference::relu_forward(y);
    pooled = reference::pool_forward(pool_shape, y);
    grad = lattice::rounded(values(pooled.size(), 4), precision);
    // Masked as by the next layer.
    for (std::size_t i = 0; c.relu && i < grad.size(); ++i) grad[i] = pooled[i] > 0.0 ? grad[i] : 0.0;
    grad_y = reference::pool_grad_x(pool_shape, y, grad);
  }

  void use(VectorSet set) {
    conv.set = set;
    conv.forward = image_forward(set, conv.precision);
    conv.gradient = image_gradient(set, conv.precision);
  }

  struct Passes {
    Array pooled, grad_weights, grad_biases;
  };

  Passes run() const {
    const Precision precision = conv.precision;
    const std::vector<std::byte> src = as_bytes(planes_of(x, conv.shape.in), precision);
    const std::vector<std::byte> grad_dst = as_bytes(grad, precision);
    std::vector<std::byte> dst(grad_dst.size());
    std::vector<std::uint8_t> choices(conv.choices(), 0xFF);
    // Only memory that was written may be read.
    std::vector<float> scratch(std::max(conv.forward_scratch(), conv.gradient_scratch()), kNaN);
    std::vector<float> partial(conv.partial_floats(), kNaN);
    const std::vector<float> taps(weights.begin(), weights.end()), shifts(biases.begin(), biases.end());
    std::vector<float> grad_weights(taps.size(), kNaN), grad_biases(shifts.size(), kNaN);
    const ImageConvMemory memory{src.data(),     dst.data(),     grad_dst.data(),
                                 choices.data(), scratch.data(), partial.data()};
    testing::run(
        plan_image_conv_forward("forward", conv, memory, taps.data(), with_biases ? shifts.data() : nullptr));
    std::fill(scratch.begin(), scratch.end(), kNaN);
    testing::run(plan_image_conv_gradient("gradient", conv, memory, grad_weights.data(),
                                          with_biases ? grad_biases.data() : nullptr));
    return {values_in(dst, precision),
            {grad_weights.begin(), grad_weights.end()},
            {grad_biases.begin(), grad_biases.end()}};
  }

  Array wanted_grad_weights() const { return reference::conv_grad_weights(conv_shape, x, grad_y); }
  Array wanted_grad_biases() const {
    return with_biases ? reference::grad_biases(conv.shape.out_channels, grad_y) : Array();
  }

  bool with_biases;
  reference::ConvShape conv_shape;
  reference::PoolShape pool_shape;
  ImageConv conv;
  Array x, weights, biases, y, pooled, grad, grad_y;
};

class ImageConvolution : public ::testing::TestWithParam<ImageConvCase> {};

// Sums are exact and many values are equal, in bf16 after rounding, so choices must equal the reference's
// too.
TEST_P(ImageConvolution, GivesTheExactValuesOfTheReferenceInBothPasses) {
  const ImageConvCase& c = GetParam();
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    const ImageConvFixture wanted(c, VectorSet::portable, precision, test::lattice);
    const Array grad_weights = wanted.wanted_grad_weights(), grad_biases = wanted.wanted_grad_biases();
    for (const VectorSet set : vector_sets_here()) {
      if (c.out_channels % lanes_of(set) != 0) continue;
      for (const int threads : {1, 3}) {
        const std::string what =
            concat(name_of(set), ", ", to_string(precision), ", ", threads, " threads: ");
        ImageConvFixture f = wanted;
        f.use(set);
        f.conv.threads = threads;
        const ImageConvFixture::Passes found = f.run();
        lattice::expect_equal(found.pooled, wanted.pooled, what + "forward");
        lattice::expect_equal(found.grad_weights, grad_weights, what + "weight gradient");
        lattice::expect_equal(found.grad_biases, grad_biases, what + "bias gradient");
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, ImageConvolution,
    ::testing::Values(
        ImageConvCase{2, {24, 24, 3}, 64, 5, 3, 2}, ImageConvCase{17, {8, 8, 3}, 16, 5, 3, 2},
        ImageConvCase{15, {7, 9, 1}, 32, 3, 2, 2}, ImageConvCase{16, {9, 7, 4}, 16, 7, 3, 2, false},
        ImageConvCase{128, {5, 6, 2}, 16, 3, 3, 3}, ImageConvCase{1, {13, 11, 3}, 80, 5, 4, 3, true, false},
        ImageConvCase{2, {15, 17, 3}, 48, 3, 4, 4}, ImageConvCase{2, {6, 5, 3}, 24, 4, 3, 2, false, false},
        ImageConvCase{3, {5, 5, 4}, 12, 6, 2, 1}, ImageConvCase{2, {7, 7, 1}, 16, 7, 1, 1},
        ImageConvCase{2, {9, 9, 2}, 16, 3, 2, 3}, ImageConvCase{2, {1, 1, 3}, 16, 5, 3, 2},
        ImageConvCase{2, {2, 3, 3}, 32, 7, 2, 2}, ImageConvCase{1, {32, 32, 3}, 128, 3, 2, 2}));

constexpr auto noise = [](std::size_t count, std::uint32_t salt) { return test::noise_array(count, salt); };

// A sum of k terms of random sign is off by about eps·sqrt(k) of its size.
TEST(ImageConv, OfTheTutorialErrsAsItsSumsAreLong) {
  for (const VectorSet set : vector_sets_here()) {
    const ImageConvFixture f({16, {24, 24, 3}, 64, 5, 3, 2}, set, Precision::fp32, noise);
    const ImageConvFixture::Passes found = f.run();
    EXPECT_LE(relative_distance(found.pooled, f.pooled), testing::kFp32Unit * std::sqrt(75.0))
        << name_of(set);
    EXPECT_LE(relative_distance(found.grad_weights, f.wanted_grad_weights()),
              testing::kFp32Unit * std::sqrt(16.0 * 144.0))
        << name_of(set);
  }
}

TEST(ImageConv, PassesOnWhatIsNotANumber) {
  for (const VectorSet set : vector_sets_here()) {
    ImageConvFixture f({1, {6, 6, 3}, 16, 3, 3, 2}, set, Precision::fp32, noise);
    for (std::size_t tap = 0; tap < 27; ++tap) f.weights[tap * 16 + 5] = kNaN;
    const Array found = f.run().pooled;
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(std::isnan(found[i]), i % 16 == 5) << i;
  }
}

TEST(ImageConv, RoundsWeightsAsBf16Does) {
  const std::vector<float> weights = testing::noise_of(3 * 3 * 16, 1);
  std::vector<float> rounded(weights.size());
  ImageConv conv;
  conv.shape = {{4, 4, 1}, 16, 3, 2, 2, true};
  testing::run(plan_image_conv_weights("weights", conv, weights.data(), rounded.data()));
  for (std::size_t i = 0; i < weights.size(); ++i) EXPECT_EQ(rounded[i], to_float(to_bf16(weights[i])));
}

bool has_own_kernels(const RunSpec& spec, const std::string& layer) {
  return NetworkRun(spec).tower->plan_text().find(layer + ": own kernels") != std::string::npos;
}

TEST(ImageConv, IsLeftToOneDnnWhereDirectConvolutionIsAskedForOrKernelsAreMissing) {
  if (!has_avx2()) GTEST_SKIP() << "the rule takes portable vectors nowhere";
  const model::NetSpec net = model::make_model("tutorial", {24, 24, 3}, 10);
  EXPECT_TRUE(has_own_kernels({.net = net}, "conv1 + pool1"));
  EXPECT_TRUE(has_own_kernels({.net = net, .conv = ConvMethod::fft}, "conv1 + pool1"));
  EXPECT_FALSE(has_own_kernels({.net = net, .conv = ConvMethod::direct}, "conv1 + pool1"));
  EXPECT_FALSE(has_own_kernels({.net = model::make_model("tutorial", {24, 24, 5}, 10)}, "conv1 + pool1"));
  EXPECT_FALSE(has_own_kernels({.net = model::make_model("resnet20", {32, 32, 3}, 10)}, "conv1"));
}

}  // namespace
}  // namespace cifar_mpi::cpu
