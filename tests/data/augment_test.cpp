#include "cifar_mpi/data/augment.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <tuple>
#include <vector>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/data/downsample.hpp"
#include "cifar_mpi/data/sample_order.hpp"

namespace cifar_mpi::data {
namespace {

constexpr std::uint64_t kAugmentSeed = 5;
constexpr double kHalfUlp = 0x1.0p-24;  // relative rounding error of one fp32 operation

AugmentSpec tutorial() {
  AugmentSpec spec;
  spec.source = {32, 32, 3};
  return spec;
}

std::vector<std::uint8_t> random_image(Extent extent, std::uint64_t index, std::uint32_t levels = 256) {
  std::vector<std::uint8_t> image(static_cast<std::size_t>(extent.count()));
  for (std::size_t i = 0; i < image.size(); ++i) {
    image[i] = static_cast<std::uint8_t>(
        uniform_below(random4(index, RandomPurpose::synthetic, i, 0)[0], levels) + (levels == 256 ? 0 : 100));
  }
  return image;
}

std::vector<float> reference(const AugmentSpec& spec, const AugmentDraw& draw, double brightness,
                             const std::vector<std::uint8_t>& image) {
  std::vector<float> out(static_cast<std::size_t>(spec.output().count()));
  augment_reference(spec, draw, brightness, image, out);
  return out;
}

/// Crop, flip and the affine map in fp32, as a backend does it, compared value by value.
void expect_map_matches(const AugmentSpec& spec, const AugmentDraw& draw, double brightness,
                        const std::vector<std::uint8_t>& image) {
  const Extent out = spec.output();
  std::vector<std::uint8_t> crop;
  std::uint32_t sum[kMostChannels] = {}, square_sum[kMostChannels] = {};
  for (int y = 0; y < out.height; ++y) {
    for (int x = 0; x < out.width; ++x) {
      const int source_x = draw.flip ? draw.left + out.width - 1 - x : draw.left + x;
      for (int c = 0; c < out.channels; ++c) {
        const std::uint32_t v = image[static_cast<std::size_t>(
            ((draw.top + y) * spec.source.width + source_x) * out.channels + c)];
        crop.push_back(static_cast<std::uint8_t>(v));
        sum[c] += v;
        square_sum[c] += v * v;
      }
    }
  }
  const AffineMap map = affine_map(sum, square_sum, out.channels, out.height * out.width, draw.contrast,
                                   [](double v) { return std::sqrt(v); });
  const std::vector<float> expected = reference(spec, draw, brightness, image);
  // The variance is a difference of two numbers up to 255², so s = f/scale has an absolute error in s² of a
  // few double roundings of 255²: relative in s, 4·2^-53·255²·scale².
  const double scale = map.scale[0];
  const double cancellation =
      4.0 * 0x1.0p-53 * 255.0 * 255.0 * scale * scale / std::min(1.0, draw.contrast * 1.0);
  for (std::size_t i = 0; i < crop.size(); ++i) {
    const float shift = map.shift[i % static_cast<std::size_t>(out.channels)];
    const float got =
        map.scale[i % static_cast<std::size_t>(out.channels)] * static_cast<float>(crop[i]) + shift;
    // Rounded: scale, the product, shift, the sum, and the reference's result.
    const double tolerance = kHalfUlp * (2.0 * scale * crop[i] + std::fabs(shift) + 2.0 * std::fabs(got)) +
                             cancellation * std::fabs(got) + 1e-12;
    ASSERT_NEAR(got, expected[i], tolerance) << "value " << i << ", contrast " << draw.contrast;
  }
}

TEST(Downsample, HasTheWeightsOfItsFormula) {
  for (int in = 1; in <= 40; ++in) {
    for (int out = 1; out <= in; ++out) {
      for (int to = 0; to < out; ++to) {
        const Taps taps = taps_of(in, out, to);
        int sum = 0;
        for (int from = 0; from < in; ++from) {
          const double weight = std::max(0.0, 1.0 - std::abs((from + 0.5) * out / in - (to + 0.5)));
          const bool has = from >= taps.first && from < taps.first + taps.count;
          ASSERT_NEAR(tap_weight(in, out, to, from), 2.0 * in * weight, 1e-9)
              << in << ' ' << out << ' ' << to;
          ASSERT_EQ(has, tap_weight(in, out, to, from) > 0) << in << ' ' << out << ' ' << to << ' ' << from;
          sum += tap_weight(in, out, to, from);
        }
        ASSERT_EQ(taps.sum, sum);
      }
    }
  }
}

/// Half of four pixels: weights 3/7, 3/7, 1/7, and the same from the other end.
TEST(Downsample, FollowsTheNormalization) {
  AugmentSpec spec{Augment::none, {4, 4, 1}, 4, 4};
  spec.normalize = Normalize::dataset;
  spec.mean[0] = 10.0f;
  spec.deviation[0] = 2.0f;
  spec.image_size = 2;
  std::vector<std::uint8_t> image(16, 10);
  image[1] = 10 + 98;  // row 0, column 1
  const std::vector<float> small = reference(spec, draw_augment(spec, 1, 0, 0), 0.0, image);
  ASSERT_EQ(small.size(), 4u);
  EXPECT_FLOAT_EQ(small[0], 49.0f * 9.0f / 49.0f);
  EXPECT_FLOAT_EQ(small[1], 49.0f * 3.0f / 49.0f);
  EXPECT_FLOAT_EQ(small[2], 0.0f);  // the lower half does not reach row 0
  // By the mean 10 + 98/16 and the deviation 98·√15/16 of the sixteen pixels, not of the four.
  spec.normalize = Normalize::image;
  const std::vector<float> standard = reference(spec, draw_augment(spec, 1, 0, 0), 0.0, image);
  EXPECT_FLOAT_EQ(standard[0], static_cast<float>((16.0 * 9.0 / 49.0 - 1.0) / std::sqrt(15.0)));
  EXPECT_FLOAT_EQ(standard[2], static_cast<float>(-1.0 / std::sqrt(15.0)));
  spec.normalize = Normalize::dataset;
  spec.image_size = 4;
  AugmentSpec whole = spec;
  whole.image_size = 0;
  EXPECT_EQ(reference(spec, {}, 0.0, image), reference(whole, {}, 0.0, image));
}

TEST(Downsample, NeedsASquareCropThatIsAtLeastAsLarge) {
  for (const auto& [height, width, size] : {std::tuple{8, 8, 9}, std::tuple{8, 9, 4}, std::tuple{8, 8, -1}}) {
    AugmentSpec spec{Augment::none, {32, 32, 3}, height, width};
    spec.image_size = size;
    EXPECT_THROW(check_crop(spec), Error) << height << ' ' << width << ' ' << size;
  }
}

TEST(DrawAugment, CoversAllCropPositionsAboutEvenly) {
  const AugmentSpec spec = tutorial();
  const int draws = 81000;
  std::vector<int> count(81);
  for (int i = 0; i < draws; ++i) {
    const AugmentDraw draw = draw_augment(spec, kAugmentSeed, 0, static_cast<std::uint64_t>(i));
    ASSERT_GE(std::min(draw.top, draw.left), 0);
    ASSERT_LE(std::max(draw.top, draw.left), 8);
    ++count[static_cast<std::size_t>(draw.top * 9 + draw.left)];
  }
  const double p = 1.0 / 81.0;
  for (const int c : count)
    EXPECT_NEAR(c, draws * p, 5.0 * std::sqrt(draws * p * (1.0 - p)));  // binomial, 5 sigma
}

TEST(DrawAugment, FlipsAboutHalfAndSpreadsTheContrast) {
  const AugmentSpec spec = tutorial();
  const int draws = 100000;
  int flips = 0;
  double sum = 0.0, square_sum = 0.0;
  for (int i = 0; i < draws; ++i) {
    const AugmentDraw draw = draw_augment(spec, kAugmentSeed, 3, static_cast<std::uint64_t>(i));
    flips += draw.flip ? 1 : 0;
    sum += draw.contrast;
    square_sum += draw.contrast * draw.contrast;
    ASSERT_GE(draw.contrast, 0.2f);
    ASSERT_LT(draw.contrast, 1.8f);
  }
  EXPECT_NEAR(flips, draws / 2.0, 5.0 * std::sqrt(draws * 0.25));
  const double mean = sum / draws;
  const double deviation = 1.6 / std::sqrt(12.0);  // of a uniform number in [0.2, 1.8)
  EXPECT_NEAR(mean, 1.0, 5.0 * deviation / std::sqrt(draws));
  // The variance of a uniform sample's variance is (1/180)·width⁴ / n.
  EXPECT_NEAR(square_sum / draws - mean * mean, deviation * deviation,
              5.0 * 1.6 * 1.6 / std::sqrt(180.0 * draws));
}

TEST(DrawAugment, ChangesWithPassSampleAndSeed) {
  const AugmentSpec spec = tutorial();
  const auto contrast = [&](std::uint64_t seed, std::uint32_t pass, std::uint64_t id) {
    return draw_augment(spec, seed, pass, id).contrast;
  };
  EXPECT_EQ(contrast(1, 2, 3), contrast(1, 2, 3));
  EXPECT_NE(contrast(1, 2, 3), contrast(1, 3, 3));
  EXPECT_NE(contrast(1, 2, 3), contrast(1, 2, 4));
  EXPECT_NE(contrast(1, 2, 3), contrast(2, 2, 3));
}

TEST(DrawAugment, DoesNotDependOnTheNumberOfRanks) {
  AugmentSpec spec{Augment::crop, {32, 32, 3}, 32, 32};
  spec.brightness = spec.contrast = 0.5f;
  const SampleOrder alone(Shuffle::global, kAugmentSeed, 500, 0, 1, 84);
  for (const int ranks : {2, 3, 4, 7}) {
    for (std::uint64_t place = 0; place < 84; ++place) {
      const auto batch = static_cast<std::uint64_t>(84 / ranks);
      const SampleOrder order(Shuffle::global, kAugmentSeed, 500, static_cast<int>(place / batch), ranks,
                              static_cast<int>(batch));
      const SampleRef one = alone.at(9, place), other = order.at(9, place % batch);
      const AugmentDraw a = draw_augment(spec, kAugmentSeed, one.epoch, one.id);
      const AugmentDraw b = draw_augment(spec, kAugmentSeed, other.epoch, other.id);
      ASSERT_EQ(a.top, b.top);
      ASSERT_EQ(a.left, b.left);
      ASSERT_EQ(a.flip, b.flip);
      ASSERT_EQ(a.contrast, b.contrast);
      ASSERT_EQ(a.brightness, b.brightness);
    }
  }
}

TEST(DrawAugment, TakesTheCentreForEvaluation) {
  AugmentSpec spec = tutorial();
  spec.kind = Augment::none;
  const AugmentDraw draw = draw_augment(spec, kAugmentSeed, 7, 11);
  EXPECT_EQ(draw.top, 4);
  EXPECT_EQ(draw.left, 4);
  EXPECT_FALSE(draw.flip);
  EXPECT_EQ(draw.contrast, 1.0f);
}

TEST(DrawAugment, MovesAndMirrorsTheCentreForAViewOfEvaluation) {
  AugmentSpec spec{Augment::none, {3, 3, 1}, 3, 3};
  spec.normalize = Normalize::dataset;
  spec.deviation[0] = 1.0f;
  spec.fill = Fill::reflect;
  const std::vector<std::uint8_t> image{1, 2, 3, 4, 5, 6, 7, 8, 9};
  const auto shown = [&](int shift, bool mirror) {
    spec.shift = shift;
    spec.mirror = mirror;
    return reference(spec, draw_augment(spec, kAugmentSeed, 0, 1), 0.0, image);
  };
  EXPECT_EQ(shown(0, true), (std::vector<float>{3, 2, 1, 6, 5, 4, 9, 8, 7}));
  EXPECT_EQ(shown(1, false), (std::vector<float>{5, 6, 5, 8, 9, 8, 5, 6, 5}));
  EXPECT_EQ(shown(-1, true), (std::vector<float>{5, 4, 5, 2, 1, 2, 5, 4, 5}));
}

TEST(DrawAugment, MovesACropByUpToThePadInEachDirection) {
  AugmentSpec spec{Augment::crop, {32, 30, 3}, 32, 28};
  spec.pad = 2;
  int count[5][5] = {}, flips = 0;
  const int draws = 25'000;
  for (int i = 0; i < draws; ++i) {
    const AugmentDraw draw = draw_augment(spec, kAugmentSeed, 0, static_cast<std::uint64_t>(i));
    ASSERT_LE(std::abs(draw.top), 2);
    ASSERT_LE(std::abs(draw.left - 1), 2);
    ++count[draw.top + 2][draw.left + 1];
    flips += draw.flip ? 1 : 0;
    ASSERT_EQ(draw.contrast, 1.0f);
  }
  for (const auto& row : count) {
    for (const int c : row) EXPECT_NEAR(c, draws / 25, 5.0 * std::sqrt(draws / 25.0));  // binomial, 5 sigma
  }
  EXPECT_NEAR(flips, draws / 2.0, 5.0 * std::sqrt(draws * 0.25));
}

TEST(DrawAugment, ShowsEveryImageInBothOrientationsInEveryTwoEpochs) {
  AugmentSpec spec = tutorial();
  spec.flip = Flip::alternate;
  int flips = 0;
  for (std::uint64_t id = 0; id < 10'000; ++id) {
    const bool first = draw_augment(spec, kAugmentSeed, 4, id).flip;
    EXPECT_NE(first, draw_augment(spec, kAugmentSeed, 5, id).flip);
    EXPECT_EQ(first, draw_augment(spec, kAugmentSeed, 6, id).flip);
    flips += first ? 1 : 0;
  }
  EXPECT_NEAR(flips, 5'000, 5.0 * 50.0);
  spec.flip = Flip::off;
  for (std::uint64_t id = 0; id < 100; ++id) EXPECT_FALSE(draw_augment(spec, kAugmentSeed, 4, id).flip);
}

TEST(DrawAugment, SpreadsBrightnessAndContrastEvenly) {
  AugmentSpec spec{Augment::crop, {32, 32, 3}, 32, 32};
  spec.brightness = 0.5f;
  spec.contrast = 0.25f;
  const int draws = 100'000;
  double sums[2] = {}, squares[2] = {}, product = 0.0;
  for (int i = 0; i < draws; ++i) {
    const AugmentDraw draw = draw_augment(spec, kAugmentSeed, 3, static_cast<std::uint64_t>(i));
    const double both[] = {static_cast<double>(draw.brightness) / 0.5,
                           (static_cast<double>(draw.contrast) - 1.0) / 0.25};
    for (int k = 0; k < 2; ++k) {
      ASSERT_LE(std::fabs(both[k]), 1.0);
      sums[k] += both[k];
      squares[k] += both[k] * both[k];
    }
    product += both[0] * both[1];
  }
  // of numbers uniform in [-1, 1]: variance 1/3, of the square 4/45, of a product 1/9
  for (int k = 0; k < 2; ++k) {
    EXPECT_NEAR(sums[k] / draws, 0.0, 5.0 * std::sqrt(1.0 / 3.0 / draws));
    EXPECT_NEAR(squares[k] / draws, 1.0 / 3.0, 5.0 * std::sqrt(4.0 / 45.0 / draws));
  }
  EXPECT_NEAR(product / draws, 0.0, 5.0 * std::sqrt(1.0 / 9.0 / draws));
  const AugmentDraw one = draw_augment(spec, kAugmentSeed, 3, 7),
                    other = draw_augment(spec, kAugmentSeed, 4, 7);
  EXPECT_NE(one.brightness, other.brightness);
  EXPECT_NE(one.contrast, other.contrast);
  AugmentSpec plain = spec;
  plain.brightness = plain.contrast = 0.0f;
  const AugmentDraw without = draw_augment(plain, kAugmentSeed, 3, 7);
  EXPECT_EQ(without.brightness, 0.0f);
  EXPECT_EQ(without.contrast, 1.0f);
  EXPECT_EQ(without.top, one.top) << "other random numbers for the crop";
  EXPECT_EQ(without.flip, one.flip);
}

TEST(DrawAugment, PutsTheMiddleOfACutAnywhere) {
  AugmentSpec spec{Augment::crop, {8, 8, 1}, 8, 8};
  spec.cutout = 4;
  int cut[8][8] = {};
  const int draws = 6'400;
  for (int i = 0; i < draws; ++i) {
    const AugmentDraw draw = draw_augment(spec, kAugmentSeed, 0, static_cast<std::uint64_t>(i));
    for (int y = 0; y < 8; ++y) {
      for (int x = 0; x < 8; ++x) cut[y][x] += draw.is_cut(spec, y, x) ? 1 : 0;
    }
  }
  // A place is cut by the middles up to 2 after and 1 before it, and by fewer at the edge.
  EXPECT_NEAR(cut[4][4], draws * 16 / 64, 5.0 * std::sqrt(draws * 0.25 * 0.75));
  EXPECT_NEAR(cut[0][0], draws * 9 / 64, 5.0 * std::sqrt(draws * 0.14 * 0.86));
}

TEST(AugmentReference, FillsWithZerosOrAMirrorAndCuts) {
  AugmentSpec spec{Augment::crop, {2, 3, 1}, 2, 3};
  spec.normalize = Normalize::dataset;
  spec.mean[0] = 10.0f;
  spec.deviation[0] = 2.0f;
  const std::vector<std::uint8_t> image{10, 12, 14, 20, 22, 24};
  EXPECT_EQ(reference(spec, {-1, 1, false, 1.0f}, 0.0, image), (std::vector<float>{-5, -5, -5, 1, 2, -5}));
  spec.fill = Fill::reflect;
  EXPECT_EQ(reference(spec, {-1, 1, false, 1.0f}, 0.0, image), (std::vector<float>{6, 7, 6, 1, 2, 1}));
  spec.cutout = 2;
  EXPECT_EQ(reference(spec, {0, 0, true, 1.0f, 1, -1}, 0.0, image), (std::vector<float>{2, 1, 0, 0, 6, 5}));
}

TEST(AugmentReference, AddsTheBrightnessToNormalizedValuesAndMultipliesByTheContrast) {
  AugmentSpec spec{Augment::crop, {1, 2, 2}, 1, 2};
  spec.normalize = Normalize::dataset;
  spec.mean[0] = 10.0f;
  spec.deviation[0] = 2.0f;
  spec.mean[1] = 20.0f;
  spec.deviation[1] = 4.0f;
  AugmentDraw draw;
  draw.brightness = 0.5f;
  draw.contrast = 0.75f;
  const std::vector<std::uint8_t> image{10, 20, 14, 12};
  const std::vector<float> wanted{0.375f, 0.375f, 1.875f, -1.125f};  // (0, 0, 2, -2) + 1/2, times 3/4
  EXPECT_EQ(reference(spec, draw, 0.0, image), wanted);
  const AffineMap map = dataset_map(spec, draw);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_FLOAT_EQ(map.scale[i % 2] * static_cast<float>(image[i]) + map.shift[i % 2], wanted[i]) << i;
  draw.cut_left = 1;
  spec.cutout = 1;
  EXPECT_EQ(reference(spec, draw, 0.0, image), (std::vector<float>{0.375f, 0.375f, 0.0f, 0.0f}));
}

TEST(AugmentReference, TurnsTheContrastAboutTheChannelMeans) {
  AugmentSpec spec;
  spec.source = {1, 2, 2};
  spec.crop_height = 1;
  spec.crop_width = 2;
  // Channels (1, 3) and (5, 7), factor 1/2: (1.5, 2.5) and (5.5, 6.5), mean 4, variance (6.25 + 2.25)/2
  // = 4.25.
  const float far = static_cast<float>(2.5 / std::sqrt(4.25)),
              near = static_cast<float>(1.5 / std::sqrt(4.25));
  const std::vector<float> expected{-far, near, -near, far};
  for (const double brightness : {0.0, 63.0, -17.25}) {
    const std::vector<float> got = reference(spec, {0, 0, false, 0.5f}, brightness, {1, 5, 3, 7});
    for (std::size_t i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(got[i], expected[i]) << i;
  }
}

TEST(AffineMap, HasTheValuesComputedByHand) {
  const std::uint32_t sum[] = {4, 12}, square_sum[] = {10, 74};  // the channels (1, 3) and (5, 7)
  const AffineMap map = affine_map(sum, square_sum, 2, 2, 0.5f, [](double v) { return std::sqrt(v); });
  const double s = std::sqrt(4.25);
  EXPECT_FLOAT_EQ(map.scale[1], static_cast<float>(0.5 / s));
  EXPECT_FLOAT_EQ(map.shift[0], static_cast<float>((2.0 * 0.5 - 4.0) / s));
  EXPECT_FLOAT_EQ(map.shift[1], static_cast<float>((6.0 * 0.5 - 4.0) / s));
}

TEST(AffineMap, EqualsTheDistortionsOneAfterAnother) {
  for (const Extent source : {Extent{32, 32, 3}, Extent{28, 28, 1}, Extent{40, 30, 4}}) {
    AugmentSpec spec = tutorial();
    spec.source = source;
    for (std::uint64_t id = 0; id < 50; ++id) {
      const std::vector<std::uint8_t> image = random_image(source, id);
      const double brightness = 126.0 * uniform01(random4(id, RandomPurpose::synthetic, 0, 1)[0]) - 63.0;
      expect_map_matches(spec, draw_augment(spec, kAugmentSeed, 0, id), brightness, image);
    }
  }
}

TEST(AffineMap, EqualsThemForImagesOfAlmostOneColour) {
  AugmentSpec spec = tutorial();
  for (std::uint64_t id = 0; id < 50; ++id) {
    expect_map_matches(spec, draw_augment(spec, kAugmentSeed, 0, id), 31.0, random_image(spec.source, id, 2));
  }
}

TEST(AffineMap, DividesConstantImagesByTheFloor) {
  AugmentSpec spec = tutorial();
  const std::vector<std::uint8_t> image(static_cast<std::size_t>(spec.source.count()), 200);
  for (const float v : reference(spec, {0, 0, false, 1.3f}, 20.0, image)) EXPECT_NEAR(v, 0.0, 1e-9);
  expect_map_matches(spec, {3, 4, true, 1.3f}, 20.0, image);

  // One value of 1 728 is larger by one: stddev is about 1/sqrt(n), times contrast 0.5 it is below the minimum.
  std::vector<std::uint8_t> dot = image;
  dot[0] = 201;
  const double n = 1728.0, per_channel = 576.0;
  const std::vector<float> got = reference(spec, {0, 0, false, 0.5f}, 0.0, dot);
  const double mean_channel = 200.0 + 1.0 / per_channel, mean = 200.0 + 1.0 / n;
  const double expected = ((201.0 - mean_channel) * 0.5 + mean_channel - mean) * std::sqrt(n);
  EXPECT_NEAR(got[0], expected, 2.0 * kHalfUlp * expected);
  expect_map_matches(spec, {0, 0, false, 0.5f}, 0.0, dot);
}

}  // namespace
}  // namespace cifar_mpi::data
