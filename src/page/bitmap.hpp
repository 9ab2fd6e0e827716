#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cifar_mpi/base/shape.hpp"

namespace cifar_mpi::page {

/// A picture for a page, red, green, blue.
class Bitmap {
 public:
  Bitmap(int width, int height)
      : width_(width), height_(height), pixels_(static_cast<std::size_t>(3 * width * height)) {}
  int width() const { return width_; }
  int height() const { return height_; }
  void set(int x, int y, std::uint8_t red, std::uint8_t green, std::uint8_t blue);
  /// As a data: address. A bitmap file needs no compression and no checksums, and all browsers show it.
  std::string address() const;

 private:
  int width_;
  int height_;
  std::vector<std::uint8_t> pixels_;  ///< [height, width, 3], blue first
};

/// An image of [h, w, c] bytes. One and two channels are grey; of four the last, which may be transparency, is left out.
Bitmap bitmap_of(const std::uint8_t* pixels, const Extent& image);

std::string base64(const std::vector<std::uint8_t>& bytes);

}  // namespace cifar_mpi::page
