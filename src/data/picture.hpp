#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "cifar_mpi/base/directory.hpp"

/// Decodes PNG and JPEG pictures of any size and scales them to the square images of a dataset.
namespace cifar_mpi::data {

/// A decoded picture takes at most 192 MiB.
constexpr std::uint64_t kMostPixels = std::uint64_t{1} << 26;
constexpr std::uint64_t kMostFileBytes = std::uint64_t{1} << 28;

/// A decoded picture: [height, width, 3] uint8, red, green, blue, rows from top to bottom.
struct Picture {
  int width = 0;
  int height = 0;
  std::unique_ptr<std::uint8_t[]> rgb;
};

/// Why a picture cannot be read, without the file's name.
struct Misread {
  std::string why;
};

/// An empty picture. Its pages are allocated when they are written, so a forged size costs nothing.
/// Throws Misread for no pixels and for more than kMostPixels.
Picture make_picture(std::uint64_t width, std::uint64_t height);

/// Any PNG: grey and palettes become RGB, 16 bits are scaled to 8, transparent pixels are blended with white
/// (in linear light); a gAMA chunk is applied, profiles are ignored. Throws Misread, also for a size that
/// `file` cannot hold; in a build without libpng Error{device}.
Picture decode_png(std::span<const std::uint8_t> file);

/// A JPEG, baseline or progressive, Huffman coded, 8 bits: grey becomes RGB, CMYK too, without profiles: R = (255 -
/// C)·(255 - K)/255. Orientation tags and profiles are ignored. Throws Misread, also where libjpeg only warns of
/// missing or damaged data, and for a size that `file` cannot hold; in a build without libjpeg Error{device}.
Picture decode_jpeg(std::span<const std::uint8_t> file);

/// Reads a PNG or JPEG file, by its first bytes. Throws Error{data} naming it. Follows no symbolic link and
/// does not block on pipes.
Picture read_picture(const DirectoryEntry& entry);

/// The centre square of `picture`, whose side S is the shorter side (an odd remainder leaves one line less at
/// the left or top), averaged over areas: pixel i of an axis is the mean over [i·S/size, (i + 1)·S/size),
/// source pixels at the ends counted by the share that lies inside. In whole numbers, rounded once, halves
/// up: the same bits on every machine. Enlarges by the same rule. `out` [size, size, 3].
void average_centre_square(const Picture& picture, int size, std::span<std::uint8_t> out);

}  // namespace cifar_mpi::data
