#include "cuda/batch_norm.hpp"

#include <cmath>
#include <limits>
#include <string>

#include "cifar_mpi/base/text.hpp"
#include "cuda/conv.hpp"
#include "cuda/device/gpu.hpp"
#include "cuda/pool.hpp"

/// The kernels of residual networks against the double-precision reference, on sizes that no tile divides.
namespace cifar_mpi::cuda::testing {
namespace {

constexpr float kEpsilon = 1e-3f;
constexpr float kShare = 0.25f;

class CudaBatchNorm : public GpuTest {};
class CudaGlobalAvgPool : public GpuTest {};
class CudaShortcut : public GpuTest {};

struct Case {
  int rows = 0;
  int channels = 0;
  ValueType type = ValueType::fp32;
  bool relu = false;
  double middle = 0.3;  ///< of x, whose deviation is about 0.6
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const ValueType type : kTypes) {
    for (const bool relu : {false, true}) {
      for (const auto& [rows, channels] : {std::pair{2, 8}, std::pair{37, 5}, std::pair{700, 16},
                                           std::pair{257, 1}, std::pair{1100, 72}, std::pair{1500, 130}}) {
        all.push_back({rows, channels, type, relu});
      }
    }
  }
  all.push_back({1100, 24, ValueType::fp32, false, 1000.0});
  return all;
}

std::string text(const Case& c) {
  return concat(c.rows, 'x', c.channels, ' ', name_of(c.type), c.relu ? ", ReLU" : "");
}

/// One layer with its memory.
struct Norm {
  Norm(Bench& bench, const Case& chosen) : c(chosen), made(bench) {
    const auto channels = static_cast<std::size_t>(c.channels);
    x = noise_of(count(), 1);
    for (double& value : x) value += c.middle;
    x = rounded(x, c.type);
    grad_y = rounded(noise_of(count(), 2), c.type);
    scale = noise_of(channels, 3);
    for (double& value : scale) value += 1.5;
    scale = rounded(scale, ValueType::fp32);
    biases = noise_of(channels, 4, 0.3);
    work.type = c.type;
    work.rows = c.rows;
    work.channels = c.channels;
    work.epsilon = kEpsilon;
    work.relu = c.relu;
    work.scale = bench.upload(std::vector<float>(scale.begin(), scale.end()));
    work.biases = bench.upload(std::vector<float>(biases.begin(), biases.end()));
    work.moments = bench.take<float>(2 * channels);
    work.partials = bench.take<float>(work.partial_floats());
    work.counters = bench.counters(static_cast<std::size_t>(column_counters(c.channels)));
    src = bench.upload(x, c.type);
    grad_dst = bench.upload(grad_y, c.type);
    dst = bench.take(count(), c.type);
    grad_src = bench.take(count(), c.type);
    for (float** const one : {&mean, &variance, &grad_scale, &grad_biases})
      *one = bench.take<float>(channels);
  }

  std::size_t count() const {
    return static_cast<std::size_t>(c.rows) * static_cast<std::size_t>(c.channels);
  }
  void forward() { batch_norm_forward(made.stream, work, src, dst, mean, variance, kShare); }
  void backward() {
    batch_norm_backward(made.stream, work, src, grad_dst, grad_scale, grad_biases, grad_src);
  }
  reference::Array values(const void* at) { return made.download(at, count(), c.type); }
  reference::Array by_channel(const float* at) {
    return made.download(at, static_cast<std::size_t>(c.channels), ValueType::fp32);
  }

  Case c;
  Bench& made;
  reference::Array x, grad_y, scale, biases;
  BatchNormWork work;
  void *src, *grad_dst, *dst, *grad_src;
  float *mean, *variance, *grad_scale, *grad_biases;
};

const model::BatchNorm kLayer{.name = "bn", .epsilon = kEpsilon};

/// x − mean is exact but for the rounding of the mean, which is that of its own size.
double fp32_of(const Case& c) { return unit_of(ValueType::fp32) * (1.0 + std::abs(c.middle)); }

TEST_F(CudaBatchNorm, NormalizesAsTheReference) {
  Bench bench;
  for (const Case& c : cases()) {
    Norm norm(bench, c);
    const reference::Moments wanted = reference::moments_of(c.channels, norm.x);
    reference::Array y = reference::batch_norm_forward(kLayer, norm.x, norm.scale, norm.biases, wanted);
    if (c.relu) y = reference::relu_forward(y);
    for (int round = 0; round < 2; ++round) {  // the counters must be as they were
      norm.forward();
      EXPECT_LE(relative_distance(norm.values(norm.dst), y),
                16.0 * fp32_of(c) + (c.type == ValueType::bf16 ? unit_of(c.type) : 0.0))
          << text(c);
      const reference::Array mean = norm.by_channel(norm.mean), variance = norm.by_channel(norm.variance);
      for (std::size_t i = 0; i < mean.size(); ++i) {
        EXPECT_NEAR(mean[i], kShare * wanted.mean[i], 8.0 * fp32_of(c)) << text(c);
        // a chunk's mean is rounded, and its distance from the first chunk's, below 1, is squared
        EXPECT_NEAR(variance[i], kShare * wanted.variance[i], 16.0 * fp32_of(c)) << text(c);
      }
    }
    bench.clear();
  }
}

TEST_F(CudaBatchNorm, HasTheReferenceGradients) {
  Bench bench;
  for (const Case& c : cases()) {
    Norm norm(bench, c);
    norm.forward();
    norm.backward();
    const reference::Array y = reference::batch_norm_forward(kLayer, norm.x, norm.scale, norm.biases,
                                                             reference::moments_of(c.channels, norm.x));
    const auto wanted = reference::batch_norm_backward(
        kLayer, norm.x, norm.scale, c.relu ? reference::relu_grad_x(y, norm.grad_y) : norm.grad_y);
    const double tolerance = 32.0 * fp32_of(c), shorter = c.type == ValueType::bf16 ? unit_of(c.type) : 0.0;
    // With two values per channel nothing is left of the gradient but what epsilon leaves, so x̂² must be near 1.
    const double cancelled = c.rows == 2 ? 1.0 / kEpsilon : 1.0;
    EXPECT_LE(relative_distance(norm.values(norm.grad_src), wanted.x), cancelled * tolerance + shorter)
        << text(c);
    // n terms of random sign: as far from their sum as rounding of the terms' own length
    const double length = std::sqrt(static_cast<double>(norm.count()));
    for (const auto& [found, sums] :
         {std::pair{norm.grad_scale, &wanted.scale}, std::pair{norm.grad_biases, &wanted.biases}}) {
      const reference::Array sum = norm.by_channel(found);
      for (std::size_t i = 0; i < sum.size(); ++i)
        EXPECT_NEAR(sum[i], (*sums)[i], tolerance * length) << text(c);
    }
    const reference::Array apart = norm.values(norm.grad_src), scale = norm.by_channel(norm.grad_scale);
    batch_norm_backward(bench.stream, norm.work, norm.src, norm.grad_dst, nullptr, nullptr, norm.grad_src);
    expect_equal(norm.values(norm.grad_src), apart, "frozen, " + text(c));
    batch_norm_backward(bench.stream, norm.work, norm.src, norm.grad_dst, norm.grad_scale, norm.grad_biases,
                        nullptr);
    expect_equal(norm.by_channel(norm.grad_scale), scale, "parameters alone, " + text(c));
    bench.clear();
  }
}

TEST_F(CudaBatchNorm, TakesGivenStatisticsInEvaluation) {
  Bench bench;
  Norm norm(bench, {37, 20, ValueType::fp32, true});
  std::vector<float> mean, variance;
  for (int i = 0; i < 20; ++i) {
    mean.push_back(0.1f * static_cast<float>(i));
    variance.push_back(1.0f + static_cast<float>(i));
  }
  norm.work.moments = nullptr;
  norm.work.partials = nullptr;
  batch_norm_inference(bench.stream, norm.work, norm.src, norm.dst, bench.upload(mean),
                       bench.upload(variance));
  const reference::Array y = reference::relu_forward(
      reference::batch_norm_forward(kLayer, norm.x, norm.scale, norm.biases,
                                    {{mean.begin(), mean.end()}, {variance.begin(), variance.end()}}));
  EXPECT_LE(relative_distance(norm.values(norm.dst), y), 8.0 * unit_of(ValueType::fp32));
}

TEST_F(CudaBatchNorm, KeepsNan) {
  Bench bench;
  for (const ValueType type : kTypes) {
    for (const int channels : {5, 16}) {
      Norm norm(bench, {300, channels, type, true});
      norm.x[3] = std::numeric_limits<double>::quiet_NaN();
      reference::Array bits = norm.x;
      if (type == ValueType::bf16) {
        std::vector<std::uint16_t> narrow;
        for (const double value : bits) narrow.push_back(std::isnan(value) ? 0x7FC0 : to_bf16(value));
        norm.src = bench.upload(narrow);
      } else {
        norm.src = bench.upload(bits, type);
      }
      norm.forward();
      EXPECT_TRUE(std::isnan(norm.values(norm.dst)[3]));
      EXPECT_FALSE(std::isnan(norm.values(norm.dst)[4]));
      EXPECT_TRUE(std::isnan(norm.by_channel(norm.mean)[3]));
      EXPECT_TRUE(std::isnan(norm.by_channel(norm.variance)[3]));
    }
  }
}

TEST_F(CudaGlobalAvgPool, AveragesAsTheReference) {
  Bench bench;
  for (const ValueType type : kTypes) {
    for (const auto& [pixels, channels] :
         {std::pair{1, 8}, std::pair{16, 5}, std::pair{64, 64}, std::pair{49, 136}, std::pair{300, 67}}) {
      const Extent in{pixels, 1, channels};
      const auto outputs = static_cast<std::size_t>(3 * channels),
                 inputs = outputs * static_cast<std::size_t>(pixels);
      const reference::Array x = lattice(inputs, 81), grad = lattice(outputs, 82);
      const GlobalAvgPoolShape shape{3, pixels, channels, type};
      void *const y = bench.take(outputs, type), *const grad_x = bench.take(inputs, type);
      global_avg_pool_forward(bench.stream, shape, bench.upload(x, type), y);
      global_avg_pool_backward(bench.stream, shape, bench.upload(grad, type), grad_x);
      // sums are exact, so a division and a rounding are left
      EXPECT_LE(
          relative_distance(bench.download(y, outputs, type), reference::global_avg_pool_forward(3, in, x)),
          2.0 * unit_of(type));
      EXPECT_LE(relative_distance(bench.download(grad_x, inputs, type),
                                  reference::global_avg_pool_grad_x(3, in, grad)),
                2.0 * unit_of(type));
    }
  }
}

TEST_F(CudaShortcut, TakesThePixelsOfTheReference) {
  Bench bench;
  for (const ValueType type : kTypes) {
    for (const auto& [channels, outputs] :
         {std::pair{16, 32}, std::pair{3, 3}, std::pair{5, 8}, std::pair{8, 13}, std::pair{8, 8}}) {
      for (const int stride : {1, 2, 3}) {
        const model::Shortcut layer{"s", outputs, stride};
        const Extent in{7, 6, channels}, out{(7 + stride - 1) / stride, (6 + stride - 1) / stride, outputs};
        const auto xs = static_cast<std::size_t>(2 * in.count()),
                   ys = static_cast<std::size_t>(2 * out.count());
        const reference::Array x = lattice(xs, 91), grad = lattice(ys, 92);
        void *const y = bench.take(ys, type), *const grad_x = bench.take(xs, type);
        im2col(bench.stream, {2, 7, 6, channels, 1, 0, outputs, stride, 1, out.height, out.width}, type,
               bench.upload(x, type), y);
        im2col(bench.stream, {2, out.height, out.width, outputs, 1, 0, channels, 1, stride, 7, 6}, type,
               bench.upload(grad, type), grad_x);
        const std::string what = concat(channels, " to ", outputs, ", stride ", stride);
        expect_equal(bench.download(y, ys, type), reference::shortcut_forward(layer, 2, in, x), what);
        expect_equal(bench.download(grad_x, xs, type), reference::shortcut_grad_x(layer, 2, in, grad), what);
      }
    }
  }
}

}  // namespace
}  // namespace cifar_mpi::cuda::testing
