#include "page/bitmap.hpp"

#include <algorithm>

namespace cifar_mpi::page {

void Bitmap::set(int x, int y, std::uint8_t red, std::uint8_t green, std::uint8_t blue) {
  std::uint8_t* const pixel = &pixels_[static_cast<std::size_t>(3 * (y * width_ + x))];
  pixel[0] = blue;
  pixel[1] = green;
  pixel[2] = red;
}

std::string Bitmap::address() const {
  const auto row_bytes = static_cast<std::size_t>(3 * width_), padded = (row_bytes + 3) / 4 * 4;
  std::vector<std::uint8_t> file;
  const auto put = [&](std::size_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) file.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
  };
  constexpr std::size_t kHead = 54;
  put(0x4D42, 2);  // "BM"
  put(kHead + padded * static_cast<std::size_t>(height_), 4);
  put(0, 4);
  put(kHead, 4);
  put(40, 4);  // the second head's size
  put(static_cast<std::size_t>(width_), 4);
  put(static_cast<std::size_t>(height_), 4);
  put(1, 2);
  put(24, 2);  // bits per pixel
  put(0, 4);   // not compressed
  put(padded * static_cast<std::size_t>(height_), 4);
  put(2835, 4);  // pixels per metre
  put(2835, 4);
  put(0, 8);
  for (int y = height_ - 1; y >= 0; --y) {  // from bottom to top
    const auto row = pixels_.begin() + static_cast<std::ptrdiff_t>(row_bytes * static_cast<std::size_t>(y));
    file.insert(file.end(), row, row + static_cast<std::ptrdiff_t>(row_bytes));
    file.resize(file.size() + padded - row_bytes);
  }
  return "data:image/bmp;base64," + base64(file);
}

Bitmap bitmap_of(const std::uint8_t* pixels, const Extent& image) {
  Bitmap bitmap(image.width, image.height);
  const bool colours = image.channels >= 3;
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x, pixels += image.channels)
      bitmap.set(x, y, pixels[0], pixels[colours ? 1 : 0], pixels[colours ? 2 : 0]);
  }
  return bitmap;
}

std::string base64(const std::vector<std::uint8_t>& bytes) {
  constexpr const char* kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t n = std::min<std::size_t>(3, bytes.size() - i);
    const auto at = [&](std::size_t k) { return k < n ? static_cast<std::uint32_t>(bytes[i + k]) : 0u; };
    const std::uint32_t three = at(0) << 16 | at(1) << 8 | at(2);
    for (std::size_t k = 0; k < 4; ++k) text += k <= n ? kDigits[three >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

}  // namespace cifar_mpi::page
