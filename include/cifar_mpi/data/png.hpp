#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace cifar_mpi::data {

/// A PNG of `pixels` [height, width, channels], of 1 channel (grey) or 3 (red, green, blue). Empty in a build
/// without libpng, and when there is no memory for it.
std::string encode_png(int width, int height, int channels, std::span<const std::uint8_t> pixels);

}  // namespace cifar_mpi::data
