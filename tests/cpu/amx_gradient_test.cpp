#include "cpu/amx_gradient.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>

#include "cifar_mpi/cpu/backend.hpp"
#include "cpu/dnnl.hpp"
#include "support/layer_check.hpp"

/// The weight gradient on AMX. Values are small whole numbers, so that sums are exact in any order.
namespace cifar_mpi::cpu {
namespace {

using model::Conv2d;
using test::LayerCase;
using test::SourceFormat;

bool is_missing() {
  if (has_amx()) return false;
  std::cout << "[  LOUD    ] this cpu has no AMX: its weight gradient is NOT tested here\n";
  return true;
}

Conv2d conv_of(int out, int kernel, int stride, bool valid = false) {
  return {.name = "c",
          .out_channels = out,
          .kernel = kernel,
          .stride = stride,
          .with_bias = false,
          .valid = valid};
}

/// One layer with its operands; scratch memory begins as NaN.
struct Fixture {
  Conv2d layer;
  Extent in, out;
  int samples;
  std::vector<bf16> src, grad_dst;
  std::vector<float> found;

  Fixture(const Conv2d& conv, const Extent& extent, int number) : layer(conv), in(extent), samples(number) {
    out = {model::padding_of(layer, in.height).outputs, model::padding_of(layer, in.width).outputs,
           layer.out_channels};
    src = numbers(in.count(), 7);
    grad_dst = numbers(out.count(), 5);
    found.assign(static_cast<std::size_t>(layer.kernel * layer.kernel * in.channels * out.channels), 1.0f);
  }
  std::vector<bf16> numbers(int count, int period) const {
    std::vector<bf16> values(static_cast<std::size_t>(samples) * static_cast<std::size_t>(count));
    std::uint32_t state = static_cast<std::uint32_t>(period);
    for (bf16& value : values) {
      state = state * 1664525u + 1013904223u;
      value = to_bf16(
          static_cast<float>(static_cast<int>((state >> 16) % static_cast<std::uint32_t>(period)) - 2));
    }
    return values;
  }
  void run(bool adds) {
    const AmxGradient gradient = AmxGradient::plan(layer, in, out).value();
    const std::size_t bytes = (gradient.scratch_bytes() + 63) / 64 * 64;
    const std::unique_ptr<void, decltype(&std::free)> scratch(std::aligned_alloc(64, bytes), &std::free);
    std::fill_n(static_cast<std::byte*>(scratch.get()), bytes, std::byte{0xff});
    gradient.run({src.data(), grad_dst.data(), samples, found.data(), adds},
                 static_cast<std::byte*>(scratch.get()), [this] { ++calls; });
  }
  /// Of one weight.
  double wanted(int ky, int kx, int i, int o) const {
    const int top = model::padding_of(layer, in.height).before,
              left = model::padding_of(layer, in.width).before;
    double sum = 0.0;
    for (int n = 0; n < samples; ++n) {
      for (int y = 0; y < out.height; ++y) {
        for (int x = 0; x < out.width; ++x) {
          const int row = y * layer.stride + ky - top, column = x * layer.stride + kx - left;
          if (row < 0 || row >= in.height || column < 0 || column >= in.width) continue;
          const int from = ((n * in.height + row) * in.width + column) * in.channels + i;
          const int to = ((n * out.height + y) * out.width + x) * out.channels + o;
          sum += to_float(src[static_cast<std::size_t>(from)]) *
                 to_float(grad_dst[static_cast<std::size_t>(to)]);
        }
      }
    }
    return sum;
  }
  void expect_all(double more) const {
    std::size_t at = 0, wrong = 0;
    for (int ky = 0; ky < layer.kernel; ++ky) {
      for (int kx = 0; kx < layer.kernel; ++kx) {
        for (int i = 0; i < in.channels; ++i) {
          for (int o = 0; o < out.channels; ++o) wrong += found[at++] != wanted(ky, kx, i, o) + more;
        }
      }
    }
    EXPECT_EQ(wrong, 0u) << "of " << at << " weights";
  }

  int calls = 0;
};

TEST(AmxGradient, EqualsTheSumOfAllTaps) {
  if (is_missing()) GTEST_SKIP();
  for (const int stride : {1, 2}) {
    for (const int kernel : {1, 2, 3}) {
      for (const Extent& in : {Extent{8, 8, 16}, Extent{7, 5, 24}, Extent{3, 3, 40}, Extent{5, 12, 16}}) {
        for (const int out : {16, 40, 64}) {
          SCOPED_TRACE(concat(to_string(in), " to ", out, ", kernel ", kernel, '/', stride));
          Fixture f(conv_of(out, kernel, stride, in.height == 7), in, 3);
          f.run(false);
          f.expect_all(0.0);
        }
      }
    }
  }
}

/// The cache holds the copies of nine of the first images; sums of the second layer are so large that it
/// copies more.
TEST(AmxGradient, ContinuesItsSumsWithTheNextImages) {
  if (is_missing()) GTEST_SKIP();
  Fixture large(conv_of(16, 3, 1), {32, 32, 16}, 20);
  large.run(false);
  EXPECT_EQ(large.calls, 3);
  large.expect_all(0.0);
  Fixture wide(conv_of(128, 3, 1), {4, 4, 144}, 70);
  wide.run(false);
  EXPECT_EQ(wide.calls, 2);
  wide.expect_all(0.0);
}

TEST(AmxGradient, AddsToTheSumOfEarlierPieces) {
  if (is_missing()) GTEST_SKIP();
  Fixture f(conv_of(32, 3, 1), {6, 6, 16}, 2);
  f.run(true);
  f.expect_all(1.0);
}

TEST(AmxGradient, IsNotPlannedForNarrowOrBiasedLayersAndLargeKernels) {
  const Extent in{8, 8, 16}, out{8, 8, 16};
  EXPECT_TRUE(AmxGradient::plan(conv_of(16, 3, 1), in, out));
  EXPECT_FALSE(AmxGradient::plan(conv_of(16, 5, 1), in, out));
  EXPECT_FALSE(AmxGradient::plan(conv_of(16, 3, 3), in, out));
  EXPECT_FALSE(AmxGradient::plan(conv_of(16, 3, 1), {8, 8, 15}, out));
  EXPECT_FALSE(AmxGradient::plan(conv_of(15, 3, 1), in, {8, 8, 15}));
  EXPECT_FALSE(AmxGradient::plan(Conv2d{"c", 16, 3}, in, out));
}

/// 20 samples are two pieces of 10 on one thread and on two; 23 have pieces on no number of threads.
TEST(AmxGradient, ServesLayersOnAnyNumberOfThreads) {
  if (is_missing()) GTEST_SKIP();
  for (const int threads : {1, 2, 3}) {
    for (const int batch : {20, 23, 48}) {
      test::LayerBackend backend(make_backend({threads, false}));
      backend.format = SourceFormat::of_1x1;
      const LayerCase c{batch, {8, 7, 16}, {conv_of(32, 3, 1)}};
      SCOPED_TRACE(concat(c.text(), ", ", threads, " threads"));
      expect_reference(backend, c, engine::Precision::bf16, false);
      const std::string plan = test::LayerRun(backend, c, engine::Precision::bf16).tower->plan_text();
      const bool shares = threads == 1 || batch == 48 || (batch == 20 && threads == 2);
      EXPECT_EQ(plan.find("c weight gradient: own kernel, AMX") != std::string::npos, shares) << plan;
    }
  }
}

/// Of noise. 96 samples are six pieces of 16 on one to three threads.
TEST(AmxGradient, HasTheSameBitsOnAnyNumberOfThreads) {
  if (is_missing()) GTEST_SKIP();
  LayerCase c{96, {8, 7, 16}, {conv_of(32, 3, 1)}};
  c.terms.values = test::Values::noise;
  std::vector<reference::Array> first;
  for (const int threads : {1, 2, 3, 2}) {
    test::LayerBackend backend(make_backend({threads, false}));
    backend.format = SourceFormat::of_1x1;
    test::LayerRun run(backend, c, engine::Precision::bf16);
    run.run(run.training());
    const std::vector<reference::Array> found = run.gradients();
    if (first.empty()) first = found;
    EXPECT_EQ(found, first) << threads << " threads";
  }
}

}  // namespace
}  // namespace cifar_mpi::cpu
