#include "cifar_mpi/data/augment.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <vector>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::data {
namespace {

std::vector<double> crop_and_flip(const AugmentSpec& spec, const AugmentDraw& draw,
                                  std::span<const std::uint8_t> image) {
  const Extent out = spec.crop();
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(out.count()));
  for (int y = 0; y < out.height; ++y) {
    for (int x = 0; x < out.width; ++x) {
      const int column = draw.left + (draw.flip ? out.width - 1 - x : x);
      const int row = source_of(draw.top + y, spec.source.height, spec.fill);
      const int source = source_of(column, spec.source.width, spec.fill);
      for (int c = 0; c < out.channels; ++c) {
        const int at = (row * spec.source.width + source) * out.channels + c;
        values.push_back(row < 0 || source < 0 ? 0.0 : image[static_cast<std::size_t>(at)]);
      }
    }
  }
  return values;
}

void adjust_contrast(std::vector<double>& values, std::size_t channels, double factor) {
  std::array<double, kMostChannels> mean{};
  for (std::size_t i = 0; i < values.size(); ++i) mean[i % channels] += values[i];
  for (double& m : mean) m /= static_cast<double>(values.size() / channels);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = (values[i] - mean[i % channels]) * factor + mean[i % channels];
  }
}

void standardize(std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  double mean = 0.0;
  for (const double v : values) mean += v / n;
  double variance = 0.0;
  for (const double v : values) variance += (v - mean) * (v - mean) / n;
  const double divisor = std::max(std::sqrt(variance), 1.0 / std::sqrt(n));
  for (double& v : values) v = (v - mean) / divisor;
}

/// `rows` rows of [in, inner] values become rows of [out, inner] values, by the formula of downsample.hpp.
std::vector<double> downsample(const std::vector<double>& values, int rows, int in, int out, int inner) {
  std::vector<double> smaller(static_cast<std::size_t>(rows * out * inner));
  for (int row = 0; row < rows; ++row) {
    for (int to = 0; to < out; ++to) {
      for (int i = 0; i < inner; ++i) {
        double sum = 0.0, weights = 0.0;
        for (int from = 0; from < in; ++from) {
          const double distance = std::abs((from + 0.5) * out / in - (to + 0.5));
          const double weight = std::max(0.0, 1.0 - distance);
          sum += weight * values[static_cast<std::size_t>((row * in + from) * inner + i)];
          weights += weight;
        }
        smaller[static_cast<std::size_t>((row * out + to) * inner + i)] = sum / weights;
      }
    }
  }
  return smaller;
}

}  // namespace

void check_crop(const AugmentSpec& spec) {
  const Extent out = spec.crop();
  if (spec.downsamples() &&
      (spec.image_size < 0 || out.height != out.width || spec.image_size > out.height)) {
    throw Error(ErrorKind::usage, "cannot downsample a crop of ", to_string(out), " to ", spec.image_size,
                'x', spec.image_size, "; the crop must be square and at least that large");
  }
  if (out.height >= 1 && out.width >= 1 && out.channels >= 1 && out.height <= spec.source.height &&
      out.width <= spec.source.width && out.channels <= kMostChannels &&
      out.height <= kMostCropPixels / out.width) {
    return;
  }
  throw Error(ErrorKind::usage, "cannot crop ", to_string(out), " from images of ", to_string(spec.source),
              "; a crop must fit the image, with at most ", kMostChannels, " channels and ", kMostCropPixels,
              " pixels");
}

void augment_reference(const AugmentSpec& spec, const AugmentDraw& draw, double brightness,
                       std::span<const std::uint8_t> image, std::span<float> out) {
  assert(image.size() == static_cast<std::size_t>(spec.source.count()));
  assert(out.size() == static_cast<std::size_t>(spec.output().count()));
  std::vector<double> values = crop_and_flip(spec, draw, image);
  for (double& v : values) v += brightness;
  const auto channels = static_cast<std::size_t>(spec.source.channels);
  if (spec.normalize == Normalize::image) {
    adjust_contrast(values, channels, draw.contrast);
    standardize(values);
  } else {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double normal = (values[i] - static_cast<double>(spec.mean[i % channels])) /
                            static_cast<double>(spec.deviation[i % channels]);
      values[i] = (normal + static_cast<double>(draw.brightness)) * static_cast<double>(draw.contrast);
    }
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const int pixel = static_cast<int>(i / channels);
    if (draw.is_cut(spec, pixel / spec.crop_width, pixel % spec.crop_width)) values[i] = 0.0;
  }
  if (spec.downsamples()) {
    const int in = spec.crop_height, size = spec.image_size, inner = spec.source.channels;
    values = downsample(values, 1, in, size, in * inner);
    values = downsample(values, size, in, size, inner);
  }
  std::ranges::transform(values, out.begin(), [](double v) { return static_cast<float>(v); });
}

}  // namespace cifar_mpi::data
