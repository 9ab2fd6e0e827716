#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cifar_mpi/data/dataset.hpp"

/// Parts of the readers of CIFAR-10 and CIFAR-100, usable on small test files.
namespace cifar_mpi::data {

constexpr Extent kCifarImage{32, 32, 3};
constexpr int kCifarClasses = 10;
constexpr int kCifarTrainBatches = 5;
constexpr std::uint64_t kCifarBatch = 10000;
constexpr std::uint64_t kCifar100Train = 50000;
constexpr std::uint64_t kCifar100Test = 10000;

/// How a record of an official binary file begins: label bytes; one of them is used. 1024 red, green and
/// blue bytes each follow.
struct BinaryRecord {
  const char* set;
  std::size_t label_bytes;
  std::size_t label_at;
  int classes;  ///< the label used is below
};
constexpr BinaryRecord kCifar10Record{"CIFAR-10", 1, 0, kCifarClasses};
constexpr BinaryRecord kCifar100Coarse{"CIFAR-100", 2, 0, 20};
constexpr BinaryRecord kCifar100Fine{"CIFAR-100", 2, 1, 100};

/// "DIRECTORY/data_batch_NUMBER" and the extension.
std::string train_batch_path(const std::string& directory, int number, const char* extension);

/// Appends `count` records of an official binary file. Throws Error{data} when the file does not have exactly
/// that many.
void read_binary_batch(const std::string& path, std::uint64_t count, Samples& samples,
                       const BinaryRecord& record = kCifar10Record);

/// Writes the records of `part` as an official binary file. Throws Error{io}.
void write_binary_batch(const std::string& path, const Samples& samples, Shard part);

/// A JSON list of labels below ten, "[6,9,9,4]". Throws Error{data} naming the path and the place.
std::vector<std::uint8_t> read_label_list(const std::string& path);

/// The names of `count` classes, one per line. Throws Error{data} for another number of them and for an empty one.
std::vector<std::string> read_name_list(const std::string& path, int count);

/// Decodes an RGB strip, one image per row, into `images` [n, 32, 32, 3] from image `first` on; returns how
/// many there were. Throws Error{data} when the file is not such a strip or has more rows than fit `images`.
std::uint64_t read_png_strip(const std::string& path, std::uint64_t first, std::vector<std::uint8_t>& images);

}  // namespace cifar_mpi::data
