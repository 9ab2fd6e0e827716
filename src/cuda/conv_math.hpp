#pragma once

#include <cstdint>

#include "cuda/divisor.hpp"

/// Index arithmetic of convolutions as matrix products; runs on the host and on the device.
namespace cifar_mpi::cuda {

/// The windows of an NHWC image as rows of a matrix, [batch · out_height · out_width, row] values.
///
/// The image's pixels are `spread` places apart, with zeros between and around them. Value k = (ky · kernel +
/// kx) · channels + c of the row of window (b, y, x) is channel c of the place (stride · y + ky − before,
/// stride · x + kx − before) of image b. Values from `inner` on are zero, or with `ones` the first of them is
/// 1: then the transposed windows times the gradient have the bias gradient as row `inner`. A convolution has
/// a spread of 1; the data gradient of a convolution with a stride has that stride as its spread, so only one
/// in stride² terms of its product is not zero.
struct Im2colShape {
  int batch = 0;
  int height = 0;
  int width = 0;
  int channels = 0;
  int kernel = 0;
  int before = 0;  ///< rows and columns of padding before the image
  int row = 0;     ///< values per row
  int stride = 1;
  int spread = 1;
  int out_height = height;
  int out_width = width;
  bool ones = false;

  constexpr int inner() const { return kernel * kernel * channels; }
  constexpr std::int64_t rows() const { return std::int64_t{batch} * out_height * out_width; }
};

/// Values that one thread writes: 16 bytes of bf16.
constexpr int kIm2colGroup = 8;

constexpr int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

/// An Im2colShape in the units of kernels: within one image, in units of one or several channels. The rows of
/// a window are runs of contiguous values of the image.
struct Im2colPlace {
  int height = 0;
  int columns = 0;  ///< of the image
  int channels = 0;
  int before = 0;
  int inner = 0;
  int stride = 1;
  int windows = 0;  ///< of one image
  int one = -1;     ///< the place in a row that holds a 1
  Divisor spread;
  Divisor width;  ///< windows in a line
  Divisor run;    ///< units of one row of a window
  Divisor row;
  Divisor channel;

  constexpr explicit Im2colPlace(const Im2colShape& shape, int unit = 1)
      : height(shape.height),
        columns(shape.width),
        channels(shape.channels / unit),
        before(shape.before),
        inner(shape.inner() / unit),
        stride(shape.stride),
        windows(shape.out_height * shape.out_width),
        one(shape.ones ? inner : -1),
        spread(shape.spread),
        width(shape.out_width),
        run(shape.kernel * channels),
        row(shape.row / unit),
        channel(channels) {}

  constexpr int line() const { return columns * channels; }
  constexpr std::int64_t image_units() const { return std::int64_t{height} * line(); }
  constexpr std::int64_t patch_units() const { return std::int64_t{windows} * row.value(); }

  static constexpr int kOne = -2;
  /// Source of unit `i` of the image's patches, −1 when it is zero, or kOne.
  constexpr int source(int i) const {
    const int pixel = row.quotient(i), k = i - pixel * row.value();
    if (k == one) return kOne;
    const int y = width.quotient(pixel), ky = run.quotient(k);
    const int from_row = y * stride - before + ky, x = (pixel - y * width.value()) * stride - before;
    if (spread.value() > 1) return k < inner ? spread_source(from_row, x, k - ky * run.value()) : -1;
    const int from = x * channels + k - ky * run.value();
    const bool inside = k < inner && from_row >= 0 && from_row < height && from >= 0 && from < line();
    return inside ? from_row * line() + from : -1;
  }
  /// `within` is the place in a window's row that begins at (y, x).
  constexpr int spread_source(int y, int x, int within) const {
    const int kx = channel.quotient(within);
    const int from_x = x + kx;
    if (y < 0 || from_x < 0 || spread.remainder(y) != 0 || spread.remainder(from_x) != 0) return -1;
    const int row_of = spread.quotient(y), column = spread.quotient(from_x);
    if (row_of >= height || column >= columns) return -1;
    return row_of * line() + column * channels + within - kx * channels;
  }
};

/// The part of an image that a block keeps to write the patches of `rows` rows of pixels (a window for
/// each pixel): the rows that their windows cover, with zeros beside and between them, then one more zero and a 1. So
/// the offset of a value from its window's first value is the same for every pixel, and never outside.
struct PatchBand {
  int rows = 0;
  int kept = 0;    ///< values without the last zero and the 1
  int lanes = 1;   ///< pixels that the threads write at once
  Divisor bands;   ///< per image
  Divisor pitch;   ///< values of one row
  Divisor groups;  ///< of kIm2colGroup values per row of the patches

  /// The number of rows that gives each of `threads` threads eight groups to write, or more if the batch
  /// still has a thousand blocks, within `most` values per band; `rows` is 0 when not even one row fits.
  constexpr PatchBand(const Im2colShape& shape, int threads, int most)
      : pitch((shape.width + shape.kernel - 1) * shape.channels), groups(shape.row / kIm2colGroup) {
    const int fit = (most - 2) / pitch.value() - (shape.kernel - 1);
    const int apiece = 8 * threads / (shape.width * groups.value());
    const std::int64_t spread = std::int64_t{shape.batch} * shape.height / 1000;
    const int least = apiece < 1 ? 1 : apiece;
    int wanted = spread < shape.height ? static_cast<int>(spread) : shape.height;
    wanted = wanted < least ? least : wanted;
    if (fit < 1) return;
    if (groups.value() < threads) lanes = threads / groups.value();
    wanted = wanted > fit ? fit : wanted;
    wanted = wanted > shape.height ? shape.height : wanted;
    bands = Divisor((shape.height + wanted - 1) / wanted);
    rows = (shape.height + bands.value() - 1) / bands.value();
    kept = (rows + shape.kernel - 1) * pitch.value();
  }

  /// Source of kept value `i` of the band whose first row is `top`, or −1 when it is zero.
  constexpr int source(const Im2colPlace& place, int top, int i) const {
    const int row = pitch.quotient(i);
    const int from_row = top - place.before + row;
    const int from = i - row * pitch.value() - place.before * place.channels;
    const bool inside = from_row >= 0 && from_row < place.height && from >= 0 && from < place.line();
    return inside ? from_row * place.line() + from : -1;
  }
  /// Index of the first kept value of a pixel's window.
  constexpr int window(const Im2colPlace& place, int pixel) const {
    return pixel * place.channels + place.width.quotient(pixel) * (pitch.value() - place.line());
  }
  /// Offset of value k from there, for k < inner.
  constexpr int offset(const Im2colPlace& place, int k) const {
    const int ky = place.run.quotient(k);
    return k + ky * (pitch.value() - place.run.value());
  }
};

/// Weights [kernel, kernel, in, out] rotated by 180 degrees with in and out swapped, [kernel, kernel, out,
/// in]: the data gradient is the convolution of the gradient with them. Source of element `i` of the result.
constexpr std::int64_t rotated_source(int kernel, int in, int out, std::int64_t i) {
  const std::int64_t matrix = std::int64_t{in} * out;
  const std::int64_t tap = i / matrix;
  const std::int64_t within = i - tap * matrix;
  const std::int64_t o = within / in;
  return (std::int64_t{kernel} * kernel - 1 - tap) * matrix + (within - o * in) * out + o;
}

}  // namespace cifar_mpi::cuda
