#pragma once

#include <cstdint>

#include "cifar_mpi/data/augment.hpp"

/// Where the values of a crop lie in the image; runs on the host and on the device.
namespace cifar_mpi::cuda {

/// Source of value `i` of a crop, [crop_height, crop_width, channels], within its image [height, width,
/// channels].
constexpr int crop_source(const data::AugmentSpec& spec, const data::AugmentDraw& draw, int i) {
  const int channels = spec.source.channels;
  const int pixel = i / channels;
  const int y = pixel / spec.crop_width;
  const int x = pixel - y * spec.crop_width;
  const int column = draw.left + (draw.flip ? spec.crop_width - 1 - x : x);
  return ((draw.top + y) * spec.source.width + column) * channels + (i - pixel * channels);
}

}  // namespace cifar_mpi::cuda
