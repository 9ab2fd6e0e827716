#include "support/pictures.hpp"

#include <cstddef>
#include <cstdlib>
#include <stdexcept>
#include <utility>
// They need FILE without including its header.
#include <jpeglib.h>
#include <png.h>

namespace cifar_mpi::test {
namespace {

void append(png_structp png, png_bytep bytes, std::size_t count) {
  static_cast<std::string*>(png_get_io_ptr(png))->append(reinterpret_cast<char*>(bytes), count);
}

int colour_type(const PngKind& kind) {
  constexpr int kTypes[] = {PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB,
                            PNG_COLOR_TYPE_RGB_ALPHA};
  return kind.palette ? PNG_COLOR_TYPE_PALETTE : kTypes[kind.channels - 1];
}

void put_number(std::string& text, std::size_t at, std::uint32_t value) {
  for (int i = 0; i < 4; ++i)
    text[at + static_cast<std::size_t>(i)] = static_cast<char>(value >> (24 - 8 * i));
}

std::uint32_t number_at(const std::string& text, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<std::uint8_t>(text[at + i]);
  return value;
}

}  // namespace

std::string png_file(int width, int height, const Values& values, const PngKind& kind) {
  std::string file;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(png, &file, append, nullptr);
  png_set_IHDR(png, info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height), kind.depth,
               colour_type(kind), kind.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  std::vector<png_color> palette;
  for (int i = 0; i < 256; ++i) {
    palette.push_back(
        {static_cast<png_byte>(i), static_cast<png_byte>(255 - i), static_cast<png_byte>(7 * i)});
  }
  if (kind.palette) png_set_PLTE(png, info, palette.data(), 256);
  png_write_info(png, info);
  const int channels = kind.palette ? 1 : kind.channels;
  const auto row_bytes = static_cast<std::size_t>(width * channels * kind.depth / 8);
  std::vector<png_bytep> rows;
  for (std::size_t y = 0; y < static_cast<std::size_t>(height); ++y)
    rows.push_back(const_cast<png_bytep>(values.data()) + y * row_bytes);
  if (values.size() != rows.size() * row_bytes) throw std::logic_error("values do not fit");
  png_write_image(png, rows.data());
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return file;
}

std::string jpeg_file(int width, int height, const Values& values, const JpegKind& kind) {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&jpeg, &memory, &size);
  jpeg.image_width = static_cast<JDIMENSION>(width);
  jpeg.image_height = static_cast<JDIMENSION>(height);
  jpeg.input_components = kind.channels;
  jpeg.in_color_space = kind.channels == 1 ? JCS_GRAYSCALE : kind.channels == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, kind.quality, TRUE);
  for (int c = 0; c < jpeg.num_components; ++c)
    jpeg.comp_info[c].h_samp_factor = jpeg.comp_info[c].v_samp_factor = 1;
  if (kind.channels == 4) jpeg.write_Adobe_marker = kind.adobe_marker ? TRUE : FALSE;
  if (kind.progressive) jpeg_simple_progression(&jpeg);
  std::vector<jpeg_scan_info> scans;
  for (int c = 0; c < kind.channels; ++c) scans.push_back({1, {c, 0, 0, 0}, 0, 63, 0, 0});
  if (kind.scan_per_channel) {
    jpeg.scan_info = scans.data();
    jpeg.num_scans = kind.channels;
  }
  jpeg_start_compress(&jpeg, TRUE);
  const auto row_bytes = static_cast<std::size_t>(width * kind.channels);
  if (values.size() != row_bytes * static_cast<std::size_t>(height))
    throw std::logic_error("values do not fit");
  for (std::size_t y = 0; y < static_cast<std::size_t>(height); ++y) {
    JSAMPROW row = const_cast<JSAMPROW>(values.data()) + y * row_bytes;
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  std::string file(reinterpret_cast<char*>(memory), size);
  jpeg_destroy_compress(&jpeg);
  std::free(memory);
  return file;
}

Values filled(int width, int height, const Values& pixel) {
  Values row, values;
  for (int x = 0; x < width; ++x) row.insert(row.end(), pixel.begin(), pixel.end());
  for (int y = 0; y < height; ++y) values.insert(values.end(), row.begin(), row.end());
  return values;
}

std::string with_right_sums(std::string png) {
  constexpr std::size_t kSignature = 8, kFields = 12;
  for (std::size_t at = kSignature; at + kFields <= png.size();) {
    const std::size_t length = number_at(png, at), end = at + 8 + length;  // after type and content
    if (length > png.size() - at - kFields) break;
    std::uint32_t sum = 0xFFFFFFFFu;
    for (std::size_t i = at + 4; i < end; ++i) {
      sum ^= static_cast<std::uint8_t>(png[i]);
      for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ ((sum & 1) != 0 ? 0xEDB88320u : 0u);
    }
    put_number(png, end, ~sum);
    at = end + 4;
  }
  return png;
}

std::string with_png_header(std::string png, std::uint32_t width, std::uint32_t height, int depth,
                            int colour) {
  constexpr std::size_t kWidth = 16, kHeight = 20, kDepth = 24, kColour = 25;
  put_number(png, kWidth, width);
  put_number(png, kHeight, height);
  png[kDepth] = static_cast<char>(depth);
  png[kColour] = static_cast<char>(colour);
  return with_right_sums(std::move(png));
}

std::string with_jpeg_size(std::string jpeg, int width, int height) {
  for (std::size_t at = 2; at + 9 < jpeg.size();) {  // segments: FF, marker, length
    const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(jpeg[at + i]); };
    if (byte(1) >= 0xC0 && byte(1) <= 0xC2) {
      const int numbers[] = {height >> 8, height, width >> 8, width};
      for (std::size_t i = 0; i < 4; ++i) jpeg[at + 5 + i] = static_cast<char>(numbers[i]);
      return jpeg;
    }
    at += 2 + static_cast<std::size_t>(byte(2) << 8 | byte(3));
  }
  throw std::logic_error("no frame header");
}

}  // namespace cifar_mpi::test
