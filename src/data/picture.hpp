#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "cifar_mpi/base/directory.hpp"

/// Pictures of any size, PNG and JPEG, and how they become the square images of a dataset.
namespace cifar_mpi::data {

/// What is decoded is at most 192 MiB.
constexpr std::uint64_t kMostPixels = std::uint64_t{1} << 26;
constexpr std::uint64_t kMostFileBytes = std::uint64_t{1} << 28;

/// A decoded picture: [height, width, 3] uint8, red, green, blue, rows from top to bottom.
struct Picture {
  int width = 0;
  int height = 0;
  std::unique_ptr<std::uint8_t[]> rgb;
};

/// Why a picture cannot be read, in a few words without the file's name.
struct Misread {
  std::string why;
};

/// An empty picture; its memory is the system's until it is written, so that an announced size costs nothing.
/// Throws Misread for no pixels and for more than kMostPixels.
Picture make_picture(std::uint64_t width, std::uint64_t height);

/// Any PNG: grey and palettes become RGB, 16 bits are scaled to 8, what is transparent lies on white (blended in
/// linear light); a gAMA chunk is honoured, profiles are not. Throws Misread, also for a size that `file` cannot
/// hold; in a build without libpng Error{device}.
Picture decode_png(std::span<const std::uint8_t> file);

/// A JPEG, baseline or progressive, Huffman coded, 8 bits: grey becomes RGB, CMYK too, without profiles:
/// R = (255 - C)·(255 - K)/255. Orientation tags and profiles are not looked at. Throws Misread, also where
/// libjpeg only warns of data that are missing or damaged, for a size that `file` cannot hold; in a build
/// without libjpeg Error{device}.
Picture decode_jpeg(std::span<const std::uint8_t> file);

/// Reads the file as what its first bytes say, PNG or JPEG. Throws Error{data} naming it. Follows no
/// symbolic link and waits for no pipe.
Picture read_picture(const DirectoryEntry& entry);

/// The centre square of `picture`, its side S the shorter side (one line less at the left or top where the rest
/// is odd), averaged over areas: pixel i of an axis is the mean over [i·S/size, (i + 1)·S/size), source pixels at
/// the ends counted by the share that lies inside. In whole numbers, rounded once, halves up: the same bits on
/// every machine. Enlarges by the same rule. `out` [size, size, 3].
void average_centre_square(const Picture& picture, int size, std::span<std::uint8_t> out);

}  // namespace cifar_mpi::data
