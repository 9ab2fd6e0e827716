#pragma once

#include <cstdint>

/// Index arithmetic of convolutions as matrix products; runs on the host and on the device.
namespace cifar_mpi::cuda {

/// Every pixel's window of an NHWC image as a row of a matrix, [batch · height · width, row] values.
///
/// Value k = (ky · kernel + kx) · channels + c of the row of pixel (b, y, x) is
/// image[b, y + ky − before, x + kx − before, c], zero outside the image; values from `inner` on are zero.
struct PatchShape {
  int batch = 0;
  int height = 0;
  int width = 0;
  int channels = 0;
  int kernel = 0;
  int before = 0;  ///< rows and columns of padding before the image
  int row = 0;     ///< values per row, a multiple of kPatchGroup, at least `inner`

  constexpr int inner() const { return kernel * kernel * channels; }
  constexpr std::int64_t rows() const { return std::int64_t{batch} * height * width; }
};

/// Values that one thread writes: 16 bytes of bf16.
constexpr int kPatchGroup = 8;

constexpr int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

/// One row: which pixel it belongs to.
struct PatchRow {
  std::int64_t image = 0;  ///< where the image's values begin
  int top = 0;             ///< image row of the window's first row; may be outside
  int left = 0;
};

constexpr PatchRow patch_row(const PatchShape& shape, std::int64_t row) {
  const int pixels = shape.height * shape.width;
  const std::int64_t b = row / pixels;
  const int pixel = static_cast<int>(row - b * pixels);
  const int y = pixel / shape.width;
  return {b * pixels * shape.channels, y - shape.before, pixel - y * shape.width - shape.before};
}

/// Where value k of the row comes from, or −1 when it is zero.
constexpr std::int64_t patch_source(const PatchShape& shape, const PatchRow& row, int k) {
  if (k >= shape.inner()) return -1;
  const int tap = k / shape.channels;
  const int ky = tap / shape.kernel;
  const int y = row.top + ky;
  const int x = row.left + tap - ky * shape.kernel;
  if (y < 0 || y >= shape.height || x < 0 || x >= shape.width) return -1;
  return row.image + (std::int64_t{y} * shape.width + x) * shape.channels + (k - tap * shape.channels);
}

/// Weights [kernel, kernel, in, out] turned by 180 degrees with in and out swapped, [kernel, kernel, out,
/// in]: the data gradient is the convolution of the gradient with them. Source of element `i` of the result.
constexpr std::int64_t turned_source(int kernel, int in, int out, std::int64_t i) {
  const std::int64_t matrix = std::int64_t{in} * out;
  const std::int64_t tap = i / matrix;
  const std::int64_t within = i - tap * matrix;
  const std::int64_t o = within / in;
  return (std::int64_t{kernel} * kernel - 1 - tap) * matrix + (within - o * in) * out + o;
}

}  // namespace cifar_mpi::cuda
