#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cifar_mpi/data/dataset.hpp"

/// Pieces of the CIFAR-10 readers, in sizes a test can make.
namespace cifar_mpi::data {

constexpr Extent kCifarImage{32, 32, 3};
constexpr int kCifarClasses = 10;
constexpr int kCifarTrainBatches = 5;
constexpr std::uint64_t kCifarBatch = 10000;

/// "DIRECTORY/data_batch_NUMBER" and the extension.
std::string train_batch_path(const std::string& directory, int number, const char* extension);

/// Appends `count` records of an official binary file. Throws Error{data} when the file does not have exactly
/// that many.
void read_binary_batch(const std::string& path, std::uint64_t count, Samples& samples);

/// Writes the records of `part` as an official binary file. Throws Error{io}.
void write_binary_batch(const std::string& path, const Samples& samples, Shard part);

/// A JSON list of labels below ten, "[6,9,9,4]". Throws Error{data} naming the path and the place.
std::vector<std::uint8_t> read_label_list(const std::string& path);

/// Decodes an RGB strip, one image per row, into `images` [n, 32, 32, 3] from image `first` on; returns how
/// many there were. Throws Error{data} when the file is not such a strip or has more rows than `images` has
/// room for.
std::uint64_t read_png_strip(const std::string& path, std::uint64_t first, std::vector<std::uint8_t>& images);

}  // namespace cifar_mpi::data
