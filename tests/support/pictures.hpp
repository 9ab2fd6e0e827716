#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// Files of pictures, made by the libraries that read them.
namespace cifar_mpi::test {

using Values = std::vector<std::uint8_t>;

struct PngKind {
  int channels = 3;      ///< 1 grey, 2 grey and alpha, 3 RGB, 4 RGB and alpha
  int depth = 8;         ///< 16: two bytes a value, the upper first
  bool palette = false;  ///< values are indices into Palette{i, 255 - i, 7·i mod 256}
  bool interlaced = false;
};
std::string png_file(int width, int height, const Values& values, const PngKind& kind = {});

struct JpegKind {
  int channels = 3;  ///< 1 grey, 3 RGB, 4 CMYK
  int quality = 100;
  bool progressive = false;
  bool scan_per_channel = false;
  bool adobe_marker = true;  ///< of CMYK
};
/// Without subsampling of colours.
std::string jpeg_file(int width, int height, const Values& values, const JpegKind& kind = {});

/// The same value everywhere, of as many channels as `pixel` has.
Values filled(int width, int height, const Values& pixel);

/// `png` with correct checksums in all chunks, up to the first that is longer than the rest of the file.
std::string with_right_sums(std::string png);

/// `png` with another width, height, depth and colour type in its header, and the matching checksum.
std::string with_png_header(std::string png, std::uint32_t width, std::uint32_t height, int depth,
                            int colour);

/// `jpeg` with another width and height in its header.
std::string with_jpeg_size(std::string jpeg, int width, int height);

}  // namespace cifar_mpi::test
