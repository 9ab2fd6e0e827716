#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cifar_mpi/comm/world.hpp"
#include "cifar_mpi/run/evaluation_file.hpp"

namespace cifar_mpi::evaluation {

/// What one rank predicted of its part of the test split.
struct Predictions {
  std::uint64_t first = 0;  ///< of the part, in the split
  std::span<const std::uint8_t> labels;
  std::span<const std::uint8_t> predictions;  ///< as many
  std::span<const float> probabilities = {};  ///< of the predicted classes; as many
};

/// Collective. Some misclassified images: at most run::kMostWrongImages, chosen by a hash of their index, so
/// that the number of ranks does not matter and every part of the split has its share. The same on all ranks,
/// ordered by class, then by predicted class. `pixels` gives an image of this rank's part, [h,w,c] of size
/// `image`; large images are shrunk. Sets `image` and the vectors of wrong images in `file`.
void gather_wrong_images(const comm::World& world, const Predictions& mine, const Extent& image,
                         const std::function<std::vector<std::uint8_t>(std::uint64_t index)>& pixels,
                         run::EvaluationFile& file);

/// Collective. All misclassified images, on rank 0; empty on the others. `files` names the file of each image of the split, or
/// is empty.
run::Mistakes gather_mistakes(const comm::World& world, const Predictions& mine,
                              const std::vector<std::string>& files);

/// Replaces each `rows` x `columns` pixels by their mean; drops the rest at the edges.
std::vector<std::uint8_t> shrink(const std::vector<std::uint8_t>& pixels, const Extent& image, int rows,
                                 int columns);

}  // namespace cifar_mpi::evaluation
