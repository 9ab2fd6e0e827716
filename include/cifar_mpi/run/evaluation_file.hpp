#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cifar_mpi/base/directory.hpp"
#include "cifar_mpi/base/shape.hpp"

/// RUN_DIR/evaluation.h5: the result of the last evaluation of the test split, image by image.
///
///   /                 attributes format = "cifar_mpi evaluation", version = 1, step (uint64),
///                     weights ("ema" or "raw"), views (uint64, of each image; missing: 1)
///   /label_names      [C] text
///   /confusion        [C, C] uint64, images by true class (row) and predicted class (column)
///   /wrong/images     [n, h, w, c] uint8, some misclassified images; /wrong/labels and /wrong/predictions
///                     [n] uint8, their true and their predicted class; /wrong/indices [n] uint64, their index
///                     in the test split
///   /mistakes/indices [m] uint64, the places of all misclassified images in the test split, in order;
///                     /mistakes/labels and /mistakes/predictions [m] uint8; /mistakes/probabilities [m] float32, of the
///                     predicted class; /mistakes/files [m] text, if the dataset names the file of each image.
///                     Older files have no such group
namespace cifar_mpi::run {

inline constexpr std::size_t kMostWrongImages = 64;
inline constexpr int kMostWrongPixels = 64;  ///< height and width; larger images are scaled down

/// Every misclassified image, in the order of the test split.
struct Mistakes {
  std::vector<std::uint64_t> indices;
  std::vector<std::uint8_t> labels;
  std::vector<std::uint8_t> predictions;
  std::vector<float> probabilities;  ///< of the predicted class
  std::vector<std::string> files;    ///< as in the dataset; empty if it does not name them

  bool operator==(const Mistakes&) const = default;
};

struct EvaluationFile {
  std::uint64_t step = 0;
  std::string weights = "ema";
  std::uint64_t views = 1;
  std::vector<std::string> label_names;
  std::vector<std::uint64_t> confusion;  ///< [C, C]

  Extent image;                      ///< of `images`
  std::vector<std::uint8_t> images;  ///< [n, h, w, c]
  std::vector<std::uint8_t> labels;
  std::vector<std::uint8_t> predictions;
  std::vector<std::uint64_t> indices;

  Mistakes mistakes;

  bool operator==(const EvaluationFile&) const = default;
};

/// Atomic: writes the whole file or nothing. Throws Error{io}.
void write_evaluation(const DirectoryEntry& file, const EvaluationFile& evaluation);

/// The file is untrusted. Throws Error{checkpoint} unless its content is consistent.
EvaluationFile read_evaluation(const DirectoryEntry& file);

}  // namespace cifar_mpi::run
