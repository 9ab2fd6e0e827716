#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cifar_mpi/base/directory.hpp"
#include "cifar_mpi/base/shape.hpp"

/// RUN_DIR/evaluation.h5: what the last evaluation of the test split found, image by image.
///
///   /                 attributes format = "cifar_mpi evaluation", version = 1, step (uint64), weights ("ema" or "raw")
///   /label_names      [C] text
///   /confusion        [C, C] uint64, how many images of the class of the row were taken for that of the column
///   /wrong/images     [n, h, w, c] uint8, some that were taken for another class; /wrong/labels and
///                     /wrong/predictions [n] uint8, their class and that other; /wrong/indices [n] uint64, their
///                     place in the test split
namespace cifar_mpi::run {

inline constexpr std::size_t kMostWrongImages = 64;
inline constexpr int kMostWrongPixels = 64;  ///< height and width; larger images are made smaller

struct EvaluationFile {
  std::uint64_t step = 0;
  std::string weights = "ema";
  std::vector<std::string> label_names;
  std::vector<std::uint64_t> confusion;  ///< [C, C]

  Extent image;                      ///< of those below
  std::vector<std::uint8_t> images;  ///< [n, h, w, c]
  std::vector<std::uint8_t> labels;
  std::vector<std::uint8_t> predictions;
  std::vector<std::uint64_t> indices;

  bool operator==(const EvaluationFile&) const = default;
};

/// Whole or not at all. Throws Error{io}.
void write_evaluation(const DirectoryEntry& file, const EvaluationFile& evaluation);

/// The file may be a stranger's: what it says fits together, or Error{checkpoint} is thrown.
EvaluationFile read_evaluation(const DirectoryEntry& file);

}  // namespace cifar_mpi::run
