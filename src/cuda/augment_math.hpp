#pragma once

#include <cstdint>

#include "cifar_mpi/data/augment.hpp"
#include "cuda/divisor.hpp"

/// Where the values of a crop lie in the image; runs on the host and on the device.
namespace cifar_mpi::cuda {

/// Source of the first channel of a pixel of a crop, [crop_height, crop_width, channels], within its image
/// [height, width, channels]; `width` divides by crop_width.
constexpr int crop_source(const data::AugmentSpec& spec, const data::AugmentDraw& draw, const Divisor& width,
                          int pixel) {
  const int y = width.quotient(pixel);
  const int x = pixel - y * width.value();
  const int column = draw.left + (draw.flip ? width.value() - 1 - x : x);
  return ((draw.top + y) * spec.source.width + column) * spec.source.channels;
}

}  // namespace cifar_mpi::cuda
