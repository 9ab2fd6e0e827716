#pragma once

#include <cstdint>

#include "cifar_mpi/data/augment.hpp"
#include "cifar_mpi/data/downsample.hpp"
#include "cuda/divisor.hpp"

/// Position of a crop's values in the image, and of a downsampled image's values in the crop; runs on the host and on
/// the device.
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

/// Calls add(weight, row, column) for each pixel of the crop that pixel (`y`, `x`) of the downsampled image is made of.
/// The weights are whole numbers; returns their sum.
template <class Add>
constexpr float visit_taps(const data::AugmentSpec& spec, int y, int x, Add add) {
  const int in = spec.crop_width, out = spec.image_size;
  const data::Taps rows = data::taps_of(in, out, y), columns = data::taps_of(in, out, x);
  for (int row = rows.first; row < rows.first + rows.count; ++row) {
    const int of_row = data::tap_weight(in, out, y, row);
    for (int column = columns.first; column < columns.first + columns.count; ++column)
      add(static_cast<float>(of_row) * static_cast<float>(data::tap_weight(in, out, x, column)), row, column);
  }
  return static_cast<float>(rows.sum) * static_cast<float>(columns.sum);
}

}  // namespace cifar_mpi::cuda
