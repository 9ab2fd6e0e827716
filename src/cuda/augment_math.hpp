#pragma once

#include <cstdint>

#include "cifar_mpi/data/augment.hpp"
#include "cuda/divisor.hpp"

/// Position of a crop's values in the image; runs on the host and on the device.
namespace cifar_mpi::cuda {

/// Source of the first channel of a pixel of a crop, [crop_height, crop_width, channels], within its image
/// [height, width, channels]; negative for pixels outside, which are zero. `width` divides by crop_width.
constexpr int crop_source(const data::AugmentSpec& spec, const data::AugmentDraw& draw, const Divisor& width,
                          int pixel) {
  const int y = width.quotient(pixel);
  const int x = pixel - y * width.value();
  const int row = data::source_of(draw.top + y, spec.source.height, spec.fill);
  const int column =
      data::source_of(draw.left + (draw.flip ? width.value() - 1 - x : x), spec.source.width, spec.fill);
  if (row < 0 || column < 0) return -1;
  return (row * spec.source.width + column) * spec.source.channels;
}

}  // namespace cifar_mpi::cuda
