#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/model/layer.hpp"
#include "cuda/augment_math.hpp"
#include "cuda/batch_norm_math.hpp"
#include "cuda/conv_math.hpp"
#include "cuda/device_choice.hpp"
#include "cuda/divisor.hpp"
#include "cuda/host_math.hpp"
#include "cuda/loss_math.hpp"
#include "cuda/lrn_pool_math.hpp"
#include "cuda/optimizer_math.hpp"
#include "cuda/sum_math.hpp"
#include "support/errors.hpp"

/// The formulas and index arithmetic of kernels, on the host.
namespace cifar_mpi::cuda {
namespace {

TEST(CropSource, GivesThePixelsOfTheReference) {
  for (const bool flip : {false, true}) {
    data::AugmentSpec spec;
    spec.source = {9, 7, 3};
    spec.crop_height = 5;
    spec.crop_width = 4;
    const data::AugmentDraw draw{3, 2, flip, 0.7f};
    std::vector<std::uint8_t> image;
    for (int i = 0; i < spec.source.count(); ++i) image.push_back(static_cast<std::uint8_t>(i * 37));
    const Divisor width(spec.crop_width);
    const auto value_of = [&](int i) {
      return image[static_cast<std::size_t>(crop_source(spec, draw, width, i / 3) + i % 3)];
    };
    std::array<std::uint32_t, 3> sum{}, square{};
    for (int i = 0; i < spec.output().count(); ++i) {
      const std::uint32_t v = value_of(i);
      sum[static_cast<std::size_t>(i % 3)] += v;
      square[static_cast<std::size_t>(i % 3)] += v * v;
    }
    const data::AffineMap map = data::affine_map(sum.data(), square.data(), 3, 20, draw.contrast,
                                                 [](double x) { return std::sqrt(x); });
    std::vector<float> wanted(static_cast<std::size_t>(spec.output().count()));
    data::augment_reference(spec, draw, 0.0, image, wanted);
    for (int i = 0; i < spec.output().count(); ++i) {
      const float v = value_of(i);
      // values of up to 255 times a scale, and a shift of that size: a few roundings of 2^-24
      EXPECT_NEAR(map.scale[i % 3] * v + map.shift[i % 3], wanted[static_cast<std::size_t>(i)],
                  255.0 * map.scale[0] * 0x1.0p-22);
    }
  }
}

TEST(VisitTaps, DownsamplesTheCropAsTheReference) {
  data::AugmentSpec spec{data::Augment::crop, {9, 8, 1}, 8, 8};
  spec.normalize = data::Normalize::dataset;
  spec.mean[0] = 100.0f;
  spec.deviation[0] = 50.0f;
  spec.cutout = 3;
  std::vector<std::uint8_t> image;
  for (int i = 0; i < spec.source.count(); ++i) image.push_back(static_cast<std::uint8_t>(i * 37));
  const Divisor width(spec.crop_width);
  for (const int size : {8, 5, 1}) {
    spec.image_size = size;
    for (const bool flip : {false, true}) {
      const data::AugmentDraw draw{-2, 1, flip, 1.0f, 4, 2};
      std::vector<float> wanted(static_cast<std::size_t>(spec.output().count()));
      data::augment_reference(spec, draw, 0.0, image, wanted);
      for (int pixel = 0; pixel < size * size; ++pixel) {
        float sum = 0.0f;
        const float weights =
            visit_taps(spec, pixel / size, pixel % size, [&](float weight, int row, int column) {
              if (draw.is_cut(spec, row, column)) return;
              const int at = crop_source(spec, draw, width, row * spec.crop_width + column);
              sum += weight *
                     ((at < 0 ? 0.0f : static_cast<float>(image[static_cast<std::size_t>(at)])) - 100.0f) /
                     50.0f;
            });
        // at most 17² values of at most 3.1, each rounded three times
        EXPECT_NEAR(sum / weights, wanted[static_cast<std::size_t>(pixel)], 3.1 * (3.0 + 289.0) * 0x1.0p-24);
      }
    }
  }
}

TEST(Divisor, DividesWhateverFitsAnInt) {
  std::vector<int> values;
  for (int i = 0; i <= 2000; ++i) values.push_back(i);
  for (int bit = 11; bit < 31; ++bit) {
    for (int beside = -2; beside <= 2; ++beside) values.push_back((1 << bit) + beside);
  }
  for (const int near : {1, 2, 3, 12345}) values.push_back(std::numeric_limits<int>::max() - near + 1);
  for (const int by : values) {
    if (by == 0) continue;
    const Divisor divisor(by);
    for (const int n : values) {
      ASSERT_EQ(divisor.quotient(n), n / by) << n << " / " << by;
      ASSERT_EQ(divisor.remainder(n), n % by) << n << " / " << by;
    }
    // where a slightly wrong multiplier shows first
    const int last = std::numeric_limits<int>::max() / by * by;
    ASSERT_EQ(divisor.quotient(last), last / by) << by;
    ASSERT_EQ(divisor.quotient(last - 1), (last - 1) / by) << by;
  }
}

TEST(SampleLoss, PredictsTheFirstOfEqualsAndHasAGradientThatSumsToZero) {
  const std::array<float, 5> logits{0.5f, 2.0f, -3.0f, 2.0f, 1.0f};
  double sum = 0.0;
  const SampleLoss sample = sample_loss(
      5, 3, {.scale = 1.0}, [&](int j) { return logits[static_cast<std::size_t>(j)]; },
      [&](int, float grad) { sum += static_cast<double>(grad); }, testing::HostMath{});
  EXPECT_EQ(sample.predicted, 1);
  EXPECT_TRUE(sample.counts);
  EXPECT_NEAR(sum, 0.0, 5 * 0x1.0p-24);
}

TEST(SampleLoss, SpreadsAShareOfTheTarget) {
  // Probabilities 1/2, 1/4, 1/4; the target of class 1 smoothed by 0.3 is 0.1, 0.8, 0.1.
  const std::array<float, 3> logits{std::log(2.0f), 0.0f, 0.0f};
  std::array<float, 3> grads{};
  const SampleLoss sample = sample_loss(
      3, 1, {.scale = 1.0, .smoothing = 0.3}, [&](int j) { return logits[static_cast<std::size_t>(j)]; },
      [&](int j, float grad) { grads[static_cast<std::size_t>(j)] = grad; }, testing::HostMath{});
  EXPECT_NEAR(static_cast<double>(sample.loss), 0.1 * std::log(2.0) + 0.9 * std::log(4.0), 8 * 0x1.0p-24);
  EXPECT_NEAR(grads[0], 0.4, 4 * 0x1.0p-24);
  EXPECT_NEAR(grads[1], -0.55, 4 * 0x1.0p-24);
  EXPECT_NEAR(grads[2], 0.15, 4 * 0x1.0p-24);
}

TEST(SegmentOf, FindsTheSegment) {
  Segments segments;
  segments.items[segments.count++] = {32, 64, 0.5f};
  segments.items[segments.count++] = {64, 80, 0.0f};
  segments.items[segments.count++] = {80, 96, 0.25f};
  EXPECT_EQ(segment_of(segments, 32).decay, 0.5f);
  EXPECT_EQ(segment_of(segments, 63).decay, 0.5f);
  EXPECT_EQ(segment_of(segments, 64).decay, 0.0f);
  EXPECT_EQ(segment_of(segments, 80).decay, 0.25f);
  EXPECT_EQ(segment_of(segments, 95).decay, 0.25f);
}

/// As the host's recursive doubling adds: every rank's partial sum, stage by stage.
float doubled(std::vector<float> ranks) {
  std::size_t leaves = 1;
  while (2 * leaves <= ranks.size()) leaves *= 2;
  const std::size_t pairs = ranks.size() - leaves;
  std::vector<float> now;
  for (std::size_t i = 0; i < leaves; ++i) {
    now.push_back(i < pairs ? ranks[2 * i] + ranks[2 * i + 1] : ranks[i + pairs]);
  }
  for (std::size_t apart = 1; apart < leaves; apart *= 2) {
    std::vector<float> next;
    for (std::size_t i = 0; i < leaves; ++i) next.push_back(now[i] + now[i ^ apart]);
    now = next;
  }
  return now.front();
}

TEST(TreeSum, AddsAsRecursiveDoublingDoes) {
  for (int ranks = 1; ranks <= 37; ++ranks) {
    for (std::uint32_t salt = 0; salt < 20; ++salt) {
      std::vector<float> values;
      for (int r = 0; r < ranks; ++r) values.push_back(testing::noise(static_cast<std::uint64_t>(r), salt));
      const float found = tree_sum(ranks, [&](int rank) { return values[static_cast<std::size_t>(rank)]; });
      EXPECT_EQ(found, doubled(values)) << ranks;
    }
  }
}

TEST(ColumnChunks, CoverEveryRowOnce) {
  for (const std::int64_t rows : {1, 2, 255, 256, 257, 1000, 73728, 100000, 131073, 2359296}) {
    const ColumnChunks chunks = column_chunks(rows);
    EXPECT_EQ(chunks.begin(0), 0);
    EXPECT_EQ(chunks.begin(chunks.chunks), rows);
    for (int i = 0; i < chunks.chunks; ++i) EXPECT_LT(chunks.begin(i), chunks.begin(i + 1)) << rows;
    EXPECT_LE(chunks.chunks, 512);
  }
}

/// Parts as chunks of rows are, of unlike sizes, around their first value and then around the first part's mean.
TEST(Moments, LoseNoDigitsToALargeMean) {
  for (const float middle : {0.0f, 1.0f, 1000.0f, -100000.0f}) {
    std::vector<double> values;
    std::vector<Moments> parts;
    for (const int count : {256, 256, 7}) {
      MomentSums sums;
      const auto value = [&](int i) {
        return middle +
               testing::noise(static_cast<std::uint64_t>(i), static_cast<std::uint32_t>(parts.size()));
      };
      for (int i = 0; i < count; ++i) {
        values.push_back(static_cast<double>(value(i)));
        const MomentSums one = seen_from(value(0), {1.0f, value(i), 0.0f});
        sums = {sums.sum + one.sum, sums.squares + one.squares};
      }
      parts.push_back(moments_of(static_cast<float>(count), value(0), sums));
    }
    MomentSums sums;
    for (const Moments& part : parts) {
      const MomentSums one = seen_from(parts[0].mean, part);
      sums = {sums.sum + one.sum, sums.squares + one.squares};
    }
    const Moments found = moments_of(static_cast<float>(values.size()), parts[0].mean, sums);
    const reference::Moments wanted = reference::moments_of(1, values);
    // a mean is rounded, and its distance from the first part's, below 1, is squared
    const double tolerance = 16.0 * 0x1.0p-24 * (1.0 + std::abs(static_cast<double>(middle)));
    EXPECT_NEAR(found.mean, wanted.mean[0], tolerance) << middle;
    EXPECT_NEAR(found.variance(), wanted.variance[0], tolerance) << middle;
  }
}

TEST(Moments, HaveNoNegativeVarianceAndKeepNan) {
  EXPECT_EQ((Moments{4.0f, 1.0f, -1e-9f}.variance()), 0.0f);
  EXPECT_TRUE(std::isnan(Moments{4.0f, 1.0f, NAN}.variance()));
  EXPECT_TRUE(std::isnan(ChannelMap{0.0f, 1.0f, 0.0f}(NAN, true)));
}

/// The windows of the data gradient contain a pixel of the output exactly where a window of the output
/// contains theirs.
TEST(Im2colPlace, TurnsRoundInTheDataGradientOfAStride) {
  for (const int stride : {1, 2, 3}) {
    for (const int kernel : {1, 2, 3, 5}) {
      const model::Padding y = model::centred_padding(7, kernel, stride),
                           x = model::centred_padding(6, kernel, stride);
      const Im2colShape forward{1,      7, 6,         2,        kernel, y.before, kernel * kernel * 2,
                                stride, 1, y.outputs, x.outputs};
      const Im2colShape back{1, y.outputs, x.outputs, 4, kernel, kernel - 1 - y.before, kernel * kernel * 4,
                             1, stride,    7,         6};
      const Im2colPlace there(forward), here(back);
      std::vector<std::array<int, 3>> pairs, turned;  // pixel of the input, tap, pixel of the output
      for (int out = 0; out < y.outputs * x.outputs; ++out) {
        for (int tap = 0; tap < kernel * kernel; ++tap) {
          const int from = there.source((out * kernel * kernel + tap) * 2);
          if (from >= 0) pairs.push_back({from / 2, tap, out});
        }
      }
      for (int in = 0; in < 7 * 6; ++in) {
        for (int tap = 0; tap < kernel * kernel; ++tap) {
          const int from = here.source((in * kernel * kernel + tap) * 4 + 3);
          if (from >= 0) turned.push_back({in, kernel * kernel - 1 - tap, from / 4});
          EXPECT_TRUE(from < 0 || from % 4 == 3);
        }
      }
      std::sort(pairs.begin(), pairs.end());
      std::sort(turned.begin(), turned.end());
      EXPECT_EQ(turned, pairs) << "kernel " << kernel << ", stride " << stride;
    }
  }
}

TEST(DeviceChoice, GivesEachLocalRankItsOwnGpu) {
  EXPECT_EQ(choose_device({2, 4, 4, false}), 2);
  EXPECT_EQ(choose_device({0, 1, 8, false}), 0);
  EXPECT_EQ(choose_device({1, 2, 8, false}), 1);
}

TEST(DeviceChoice, AdvisesABuildThatIsPossible) {
  EXPECT_EQ(build_advice(75, 13000), "build with -DCMAKE_CUDA_ARCHITECTURES=75");
  EXPECT_EQ(build_advice(70, 12090), "build with -DCMAKE_CUDA_ARCHITECTURES=70");
  EXPECT_EQ(build_advice(70, 13000),
            "build with CUDA 12.4 to 12.9, because CUDA 13 has no code for it either, and "
            "-DCMAKE_CUDA_ARCHITECTURES=70");
}

TEST(DeviceChoice, TakesTheOnlyGpuThatALauncherShows) { EXPECT_EQ(choose_device({3, 4, 1, false}), 0); }

TEST(DeviceChoice, NamesTheFlagWhenRanksWouldShare) {
  expect_error(ErrorKind::device, {"--share-gpus"}, [&] { choose_device({1, 4, 2, false}); });
  EXPECT_EQ(choose_device({1, 4, 2, true}), 1);
  EXPECT_EQ(choose_device({2, 4, 2, true}), 0);
}

TEST(DeviceChoice, FindsRanksWithOneGpuOnOneHostOnly) {
  using Ranks = std::vector<DeviceIdentity>;
  EXPECT_EQ(find_shared_device(Ranks{{0, 5}, {0, 6}, {1, 5}}).rank, -1);
  const SharedDevice shared = find_shared_device(Ranks{{0, 5}, {1, 5}, {0, 6}, {1, 5}});
  EXPECT_EQ(shared.rank, 3);
  EXPECT_EQ(shared.other, 1);
}

/// Both directions, against a look at every window.
TEST(LrnPoolRows, AreThoseThatWindowsShare) {
  const LrnRule rule{kLrnRadius, 1.0f, 0.1f, kLrnBeta};
  for (int height = 1; height <= 13; ++height) {
    const model::Padding y = model::same_padding(height, kPoolKernel, kPoolStride),
                         x = model::same_padding(4, kPoolKernel, kPoolStride);
    const PoolPlace place{1, height,      4,           y.outputs, x.outputs,
                          8, kPoolKernel, kPoolStride, y.before,  x.before};
    ASSERT_TRUE(fits_lrn_pool(place, rule));
    const auto holds = [&](int oy, int iy) {
      const int top = kPoolStride * oy - y.before;
      return top <= iy && iy < top + kPoolKernel;
    };
    for (int index = 0; index < pieces(y.outputs, kPooledRows); ++index) {
      const Rows out = piece(y.outputs, kPooledRows, index), in = rows_under(place, out);
      EXPECT_LE(static_cast<std::size_t>(in.count() * 4 * 8), normalized_values(place));
      for (int iy = 0; iy < height; ++iy) {
        for (int oy = out.begin; oy < out.end; ++oy) {
          EXPECT_TRUE(!holds(oy, iy) || (in.begin <= iy && iy < in.end));
        }
      }
    }
    std::vector<int> taken(static_cast<std::size_t>(height), 0);
    for (int index = 0; index < pieces(y.outputs, kCellRows); ++index) {
      const Rows cells = piece(y.outputs, kCellRows, index), out = rows_over(cells);
      EXPECT_LE(static_cast<std::size_t>(out.count() * x.outputs * 8), pooled_values(place));
      for (int iy = kPoolStride * cells.begin - y.before; iy < kPoolStride * cells.end - y.before; ++iy) {
        if (iy < 0 || iy >= height) continue;
        ++taken[static_cast<std::size_t>(iy)];
        for (int oy = 0; oy < y.outputs; ++oy) {
          EXPECT_TRUE(!holds(oy, iy) || (out.begin <= oy && oy < out.end)) << iy << " in " << oy;
        }
      }
    }
    EXPECT_EQ(taken, std::vector<int>(taken.size(), 1)) << height;
  }
}

TEST(LrnPool, FitsWhatTheKernelsAreMadeFor) {
  const PoolPlace place{1, 12, 12, 6, 6, 64, 3, 2, 0, 0};
  const LrnRule rule{4, 1.0f, 0.1f, 0.75f};
  EXPECT_TRUE(fits_lrn_pool(place, rule));
  const auto fits = [&](auto change) {
    PoolPlace other = place;
    LrnRule other_rule = rule;
    change(other, other_rule);
    return fits_lrn_pool(other, other_rule);
  };
  EXPECT_FALSE(fits([](PoolPlace& p, LrnRule&) { p.kernel = 2; }));
  EXPECT_FALSE(fits([](PoolPlace& p, LrnRule&) { p.stride = 3; }));
  EXPECT_FALSE(fits([](PoolPlace& p, LrnRule&) { p.before_y = 1; }));
  EXPECT_FALSE(fits([](PoolPlace& p, LrnRule&) { p.out_width = 5; }));
  EXPECT_FALSE(fits([](PoolPlace&, LrnRule& r) { r.radius = 3; }));
  EXPECT_FALSE(fits([](PoolPlace&, LrnRule& r) { r.beta = 0.5f; }));
  for (const int channels : {1, 4, 12, 24, 40, 4096}) {
    EXPECT_FALSE(fits([&](PoolPlace& p, LrnRule&) { p.channels = channels; })) << channels;
  }
  EXPECT_TRUE(fits([](PoolPlace& p, LrnRule&) { p.channels = 128; }));
  EXPECT_FALSE(fits([](PoolPlace& p, LrnRule&) { p.in_width = 200, p.out_width = 100; }));
}

}  // namespace
}  // namespace cifar_mpi::cuda
