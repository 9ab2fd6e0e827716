#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "cifar_mpi/base/names.hpp"
#include "cifar_mpi/base/random.hpp"
#include "cifar_mpi/base/shape.hpp"

/// From the images of a dataset to the input of a network: the distortions of a sample, and a reference that
/// defines them.
namespace cifar_mpi::data {

/// The distortions of a crop. All end with the normalization.
///
///   tutorial  random place inside the image, flip, brightness, contrast
///   crop      the centre moved by up to `pad` pixels in each direction, also beyond the edge; flip; with
///             Normalize::dataset brightness and contrast; cutout
///   none      the centre; for a view of evaluation moved by `shift` and mirrored
enum class Augment : std::uint8_t { tutorial, crop, none };
constexpr auto names_of(Augment) {
  return std::to_array<Name<Augment>>(
      {{"tutorial", Augment::tutorial}, {"crop", Augment::crop}, {"none", Augment::none}});
}

/// Pixels beyond the edge: zeros (black), or a reflection about the centre of the edge pixel.
enum class Fill : std::uint8_t { zeros, reflect };
constexpr auto names_of(Fill) {
  return std::to_array<Name<Fill>>({{"zeros", Fill::zeros}, {"reflect", Fill::reflect}});
}

/// Horizontal flip: at random; in every other epoch, half of the images first (so each comes in both
/// orientations in every two epochs; Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU", 2024); never.
enum class Flip : std::uint8_t { random, alternate, off };
constexpr auto names_of(Flip) {
  return std::to_array<Name<Flip>>(
      {{"random", Flip::random}, {"alternate", Flip::alternate}, {"off", Flip::off}});
}

/// image: each image to mean 0 and deviation 1 over all its values, as the tutorial. dataset: each channel by
/// the mean and deviation of the training set.
enum class Normalize : std::uint8_t { image, dataset };
constexpr auto names_of(Normalize) {
  return std::to_array<Name<Normalize>>({{"image", Normalize::image}, {"dataset", Normalize::dataset}});
}

/// The most channels of a sample.
constexpr int kMostChannels = 4;

struct AugmentSpec {
  Augment kind = Augment::tutorial;
  Extent source;  ///< uint8 NHWC images of the dataset
  int crop_height = 24;
  int crop_width = 24;
  float contrast_low = 0.2f;  ///< contrast factor, uniform in [low, high)
  float contrast_high = 1.8f;
  int pad = 4;  ///< of `crop`
  Fill fill = Fill::zeros;
  Flip flip = Flip::random;
  int cutout = 0;  ///< side of a square of zeros, centred anywhere in the network's input
                   ///< (DeVries and Taylor 2017)
  Normalize normalize = Normalize::image;
  float mean[kMostChannels] = {};       ///< of the training set's bytes; for Normalize::dataset
  float deviation[kMostChannels] = {};  ///< standard deviation, as mean
  float brightness = 0.0f;  ///< of `crop`: added after Normalize::dataset, uniform in ±brightness
  float contrast = 0.0f;    ///< of `crop`: a factor after that, uniform in 1 ± contrast
  int shift = 0;            ///< of `none`: pixels down and to the right, also beyond the edge
  bool mirror = false;      ///< of `none`: left and right exchanged
  int image_size = 0;  ///< side to which the square crop is downsampled last (downsample.hpp); 0: not at all
  // Brightness (uniform in ±63 in the tutorial) adds one number to every value; contrast turns about the
  // channel mean and standardization subtracts the mean of all values, so it cancels exactly and costs no
  // arithmetic.

  constexpr Extent crop() const { return {crop_height, crop_width, source.channels}; }
  constexpr bool downsamples() const { return image_size != 0; }
  constexpr Extent output() const {
    return downsamples() ? Extent{image_size, image_size, source.channels} : crop();
  }
  /// Whether a crop may reach beyond its image.
  constexpr bool leaves_image() const { return kind == Augment::crop || shift != 0; }
};

/// The most pixels of a crop: the sums of its squares fit 32 bits.
constexpr int kMostCropPixels = 66000;

/// Throws Error{usage} unless the crop fits the images, these limits, and a smaller size.
void check_crop(const AugmentSpec& spec);

/// The distortions of one sample in one epoch.
struct AugmentDraw {
  int top = 0;   ///< first row of the crop; may lie outside the image
  int left = 0;  ///< first column of the crop
  bool flip = false;
  float contrast = 1.0f;
  int cut_top = 0;          ///< first row of the square in the crop, as it is after the flip; may lie outside
  int cut_left = 0;         ///< first column
  float brightness = 0.0f;  ///< with Normalize::dataset, in deviations of the training set

  constexpr bool is_cut(const AugmentSpec& spec, int row, int column) const {
    return row >= cut_top && row < cut_top + spec.cutout && column >= cut_left &&
           column < cut_left + spec.cutout;
  }
};

/// The row (column) of an image of `n` rows to read for row `at`, which may lie outside; −1: none, use zero.
/// A reflection reaches at most n − 1 beyond the edge.
constexpr int source_of(int at, int n, Fill fill) {
  if (at >= 0 && at < n) return at;
  if (fill == Fill::zeros) return -1;
  return at < 0 ? -at : 2 * (n - 1) - at;
}

constexpr bool draw_flip(const AugmentSpec& spec, std::uint32_t bits, std::uint64_t seed, std::uint32_t epoch,
                         std::uint64_t id) {
  switch (spec.flip) {
    case Flip::random:
      return (bits >> 31) != 0;
    case Flip::alternate:
      return ((random4(seed, RandomPurpose::flip, id, 0)[0] ^ epoch) & 1u) != 0;
    case Flip::off:
      return false;
  }
  return false;
}

/// A pure function of (seed, epoch, sample id): independent of ranks, threads and timing. `id` is the index
/// in the file.
constexpr AugmentDraw draw_augment(const AugmentSpec& spec, std::uint64_t seed, std::uint32_t epoch,
                                   std::uint64_t id) {
  const int spare_rows = spec.source.height - spec.crop_height;
  const int spare_columns = spec.source.width - spec.crop_width;
  if (spec.kind == Augment::none)
    return {spare_rows / 2 + spec.shift, spare_columns / 2 + spec.shift, spec.mirror, 1.0f};
  const Random4 r = random4(seed, RandomPurpose::augment, id, epoch);
  const auto below = [](std::uint32_t bits, int end) {
    return static_cast<int>(uniform_below(bits, static_cast<std::uint32_t>(end)));
  };
  AugmentDraw draw;
  draw.flip = draw_flip(spec, r[2], seed, epoch, id);
  if (spec.kind == Augment::tutorial) {
    draw.top = below(r[0], spare_rows + 1);
    draw.left = below(r[1], spare_columns + 1);
    draw.contrast = spec.contrast_low + (spec.contrast_high - spec.contrast_low) * uniform01(r[3]);
    return draw;
  }
  draw.top = spare_rows / 2 - spec.pad + below(r[0], 2 * spec.pad + 1);
  draw.left = spare_columns / 2 - spec.pad + below(r[1], 2 * spec.pad + 1);
  if (spec.cutout > 0) {
    const Random4 cut = random4(seed, RandomPurpose::cutout, id, epoch);
    draw.cut_top = below(cut[0], spec.crop_height) - spec.cutout / 2;
    draw.cut_left = below(cut[1], spec.crop_width) - spec.cutout / 2;
  }
  if (spec.brightness > 0.0f || spec.contrast > 0.0f) {
    const Random4 colour = random4(seed, RandomPurpose::colour, id, epoch);
    draw.brightness = spec.brightness * (2.0f * uniform01(colour[0]) - 1.0f);
    draw.contrast = 1.0f + spec.contrast * (2.0f * uniform01(colour[1]) - 1.0f);
  }
  return draw;
}

/// Contrast and normalization as one affine map per channel: y = scale[c]·x + shift[c].
///
/// With f the contrast factor, m[c] the mean of channel c of the crop, m the mean of all its n values:
///   contrast         x' = (x − m[c])·f + m[c]
///   standardization  y  = (x' − m) / max(stddev(x'), 1/sqrt(n))
/// so scale = f/s and shift[c] = (m[c]·(1 − f) − m)/s with s² = f²·mean((x − m[c])²) + mean((m[c] − m)²).
/// The sums over uint8 values are exact integers, so the result does not depend on the order of summation.
struct AffineMap {
  float scale[kMostChannels] = {};
  float shift[kMostChannels] = {};
};

/// The map by the training set's mean and deviation, whatever the image is: y = ((x − mean)/deviation + b)·f with b the
/// brightness and f the contrast of the draw.
constexpr AffineMap dataset_map(const AugmentSpec& spec, const AugmentDraw& draw) {
  AffineMap map;
  for (int c = 0; c < spec.source.channels; ++c) {
    map.scale[c] = draw.contrast / spec.deviation[c];
    map.shift[c] = (draw.brightness - spec.mean[c] / spec.deviation[c]) * draw.contrast;
  }
  return map;
}

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
  for (int c = 0; c < channels; ++c) {
    map.scale[c] = static_cast<float>(f * inverse);
    map.shift[c] = static_cast<float>((sum[c] * per_channel * (1.0 - f) - mean) * inverse);
  }
  return map;
}

/// The distortions one after another in double precision, the tutorial's as TensorFlow defines them, brightness
/// included. Tests compare every backend's augment task with it. `image` [h, w, c] uint8, `out` is the output, [h, w, c].
void augment_reference(const AugmentSpec& spec, const AugmentDraw& draw, double brightness,
                       std::span<const std::uint8_t> image, std::span<float> out);

}  // namespace cifar_mpi::data
