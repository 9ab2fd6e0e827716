#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cifar_mpi/data/augment.hpp"
#include "cifar_mpi/data/sample_order.hpp"

/// The dataset file: HDF5 with /train/images [N,h,w,c] uint8 NHWC, /train/labels [N] uint8, the same for
/// /test, and /label_names; optionally /train/files and /test/files.
namespace cifar_mpi::data {

/// The root attribute `format` of the file.
inline constexpr const char* kDatasetFormat = "cifar_mpi dataset";

enum class Split : std::uint8_t { train, test };

struct DatasetInfo {
  Extent image;
  std::vector<std::string> label_names;  ///< one per class, without control characters
  std::string source;                    ///< a description of where the images came from
  std::uint64_t train_count = 0;
  std::uint64_t test_count = 0;
  int classes() const { return static_cast<int>(label_names.size()); }
  std::uint64_t count(Split split) const { return split == Split::train ? train_count : test_count; }
};

struct Samples {
  std::vector<std::uint8_t> images;  ///< [n, h, w, c]
  std::vector<std::uint8_t> labels;  ///< [n], each below the number of classes
  /// [n], the file of each image, as a path below the folder that was packed; empty: unknown. Only for writing.
  std::vector<std::string> files = {};
};

/// The longest path that `Samples::files` may have, in bytes: a dataset stores all with the length of the longest.
inline constexpr std::size_t kLongestPath = 1000;

/// A dataset file open for reading, without HDF5 file locking. Everything but the labels' values is checked
/// on opening.
class DatasetFile {
 public:
  /// Throws Error{data} when the file is missing, not HDF5, truncated, or not of this schema; the text names
  /// path and part.
  explicit DatasetFile(const std::string& path);
  ~DatasetFile();
  DatasetFile(const DatasetFile&) = delete;
  DatasetFile& operator=(const DatasetFile&) = delete;

  const DatasetInfo& info() const { return info_; }

  /// Reads one hyperslab of a split. Throws Error{data} on a read error, a checksum error or a label out of
  /// range.
  Samples read(Split split, Shard part) const;
  /// All labels of a split, with the same errors.
  std::vector<std::uint8_t> read_labels(Split split) const;
  /// The file of each image of a split; empty if the dataset does not have them. The paths may hold any bytes. Throws
  /// Error{data} unless there is one for each image.
  std::vector<std::string> read_files(Split split) const;

 private:
  struct Open;
  std::vector<std::uint8_t> read_labels(Split split, Shard part) const;

  std::string path_;
  DatasetInfo info_;
  std::unique_ptr<Open> open_;
};

/// Writes a dataset file under a temporary name, flushes it and renames it: `path` appears complete or not at
/// all. `info.train_count` and `info.test_count` are taken from the samples. Throws Error{io} or Error{data}.
void write_dataset(const std::string& path, const DatasetInfo& info, const Samples& train,
                   const Samples& test);

/// CIFAR-10 as its official binary files: `directory` holds data_batch_1..5.bin and test_batch.bin. Throws
/// Error{data} naming the file when one is missing or has the wrong size or a bad label.
void read_cifar10_binary(const std::string& directory, Samples& train, Samples& test);

/// CIFAR-100 as its official binary files: `directory` holds train.bin, test.bin and the lists of names
/// fine_label_names.txt and coarse_label_names.txt. Takes the 100 classes or, with `coarse`, the 20
/// superclasses, and returns their names in label order. Throws Error{data} naming the file when one is
/// missing or has the wrong size or a bad label.
std::vector<std::string> read_cifar100_binary(const std::string& directory, bool coarse, Samples& train,
                                              Samples& test);

/// Whether `directory` holds the official binary files of CIFAR-100 (true) or of CIFAR-10 (false), by their
/// names. Throws Error{data} if it holds files of neither or of both.
bool holds_cifar100(const std::string& directory);

/// CIFAR-10 as six PNG strips (one image per row, 1024 × 10 000 RGB) with JSON label lists, as the npm
/// package has them. Throws Error{data}; in a build without libpng it always throws, saying so.
void read_cifar10_png(const std::string& directory, Samples& train, Samples& test);

/// Writes the official binary files from samples: 1 label byte, then 1024 red, green and blue bytes each.
void write_cifar10_binary(const std::string& directory, const Samples& train, const Samples& test);

/// A learnable set that needs no download: each class is a smooth random pattern, each image that pattern
/// shifted, scaled and buried in noise. `count` training and `count`/5 (at least `classes`) test images; a
/// pure function of the arguments.
void make_synthetic(Extent image, int classes, std::uint64_t count, std::uint64_t seed, Samples& train,
                    Samples& test);

/// The ten class names of CIFAR-10 in label order.
std::vector<std::string> cifar10_label_names();

}  // namespace cifar_mpi::data
