#pragma once

#include <cstdint>
#include <span>

#include "cifar_mpi/base/random.hpp"
#include "cifar_mpi/base/shape.hpp"

/// The tutorial's distortions: which ones a sample gets, and the reference that says what they mean.
namespace cifar_mpi::data {

/// tutorial: random crop, left-right flip, brightness, contrast, standardization. none: centre crop and
/// standardization.
enum class Augment : std::uint8_t { tutorial, none };

struct AugmentSpec {
  Augment kind = Augment::tutorial;
  Extent source;  ///< uint8 NHWC images of the dataset
  int crop_height = 24;
  int crop_width = 24;
  float contrast_low = 0.2f;  ///< contrast factor, uniform in [low, high)
  float contrast_high = 1.8f;
  // Brightness (uniform in ±63 in the tutorial) adds one number to every value; contrast turns about the
  // channel mean and standardization subtracts the mean of all values, so it cancels exactly and costs no
  // arithmetic.

  constexpr Extent output() const { return {crop_height, crop_width, source.channels}; }
};

/// What one sample gets in one epoch.
struct AugmentDraw {
  int top = 0;   ///< first row of the crop
  int left = 0;  ///< first column of the crop
  bool flip = false;
  float contrast = 1.0f;
};

/// A pure function of (seed, epoch, sample id): independent of ranks, threads and timing. `id` is the index in
/// the file.
constexpr AugmentDraw draw_augment(const AugmentSpec& spec, std::uint64_t seed, std::uint32_t epoch,
                                   std::uint64_t id) {
  const int spare_rows = spec.source.height - spec.crop_height;
  const int spare_columns = spec.source.width - spec.crop_width;
  if (spec.kind == Augment::none) return {spare_rows / 2, spare_columns / 2, false, 1.0f};
  const Random4 r = random4(seed, RandomPurpose::augment, id, epoch);
  return {static_cast<int>(uniform_below(r[0], static_cast<std::uint32_t>(spare_rows + 1))),
          static_cast<int>(uniform_below(r[1], static_cast<std::uint32_t>(spare_columns + 1))),
          (r[2] >> 31) != 0, spec.contrast_low + (spec.contrast_high - spec.contrast_low) * uniform01(r[3])};
}

/// The affine map, per channel, that contrast and standardization together are: y = scale·x + shift[c].
///
/// With f the contrast factor, m[c] the mean of channel c of the crop, m the mean of all its n values:
///   contrast         x' = (x − m[c])·f + m[c]
///   standardization  y  = (x' − m) / max(stddev(x'), 1/sqrt(n))
/// so scale = f/s and shift[c] = (m[c]·(1 − f) − m)/s with s² = f²·mean((x − m[c])²) + mean((m[c] − m)²).
/// The sums over uint8 values are exact integers, so the result does not depend on the order of summation.
struct AffineMap {
  static constexpr int kMaxChannels = 4;
  float scale = 1.0f;
  float shift[kMaxChannels] = {};
};

/// `sum[c]` and `square_sum[c]` over the `pixels` values of channel c; `sqrt_of` is the square root to use
/// (device or host).
template <class Sqrt>
constexpr AffineMap affine_map(const std::uint32_t* sum, const std::uint32_t* square_sum, int channels,
                               int pixels, float contrast, Sqrt sqrt_of) {
  const double per_channel = 1.0 / pixels;
  const double f = contrast;
  double mean = 0.0, within = 0.0, between = 0.0;
  for (int c = 0; c < channels; ++c) mean += sum[c] * per_channel / channels;
  for (int c = 0; c < channels; ++c) {
    const double m = sum[c] * per_channel;
    within += (square_sum[c] * per_channel - m * m) / channels;
    between += (m - mean) * (m - mean) / channels;
  }
  const double deviation = sqrt_of(f * f * (within > 0.0 ? within : 0.0) + between);
  const double least = 1.0 / sqrt_of(static_cast<double>(pixels) * channels);
  const double inverse = 1.0 / (deviation > least ? deviation : least);
  AffineMap map;
  map.scale = static_cast<float>(f * inverse);
  for (int c = 0; c < channels; ++c) {
    map.shift[c] = static_cast<float>((sum[c] * per_channel * (1.0 - f) - mean) * inverse);
  }
  return map;
}

/// The distortions one after another in double precision, each as TensorFlow defines it, brightness included:
/// what every backend's augment task is tested against. `image` [h, w, c] uint8, `out` [crop_h, crop_w, c].
void augment_reference(const AugmentSpec& spec, const AugmentDraw& draw, double brightness,
                       std::span<const std::uint8_t> image, std::span<float> out);

}  // namespace cifar_mpi::data
