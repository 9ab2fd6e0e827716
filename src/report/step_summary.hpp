#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cifar_mpi/base/shape.hpp"
#include "cifar_mpi/engine/value_counts.hpp"

namespace cifar_mpi::report {

struct NamedCounts {
  std::string name;
  engine::ValueCounts counts;
};

/// The share of zeros; NaN if there are no values.
inline double sparsity(const engine::ValueCounts& counts) {
  return static_cast<double>(counts.zeros) / static_cast<double>(counts.values());
}

/// The summary of every --summary-every steps.
struct StepSummary {
  std::uint64_t step = 0;              ///< completed steps
  std::vector<NamedCounts> variables;  ///< by parameter, as they are after the step
  std::vector<NamedCounts> gradients;  ///< by parameter, of the step, summed over all ranks, before clipping
  /// By layer, of rank 0's batch in the step, or of its first part.
  std::vector<NamedCounts> activations;
  double gradient_norm = 0.0;  ///< of all gradients; 0: every log line has it
};

/// Some images as the network sees them, made visible: [count, height, width, channels].
struct InputImages {
  Extent extent;
  std::vector<std::uint8_t> pixels;

  bool empty() const { return pixels.empty(); }
  /// In std::size_t, because an image in a file may have more pixels than an int holds.
  std::size_t count() const {
    const auto size = [](int n) { return static_cast<std::size_t>(n); };
    return pixels.size() / (size(extent.height) * size(extent.width) * size(extent.channels));
  }
};

/// Values [n, h, w, c] to 0..255, each image by itself, as tf.summary.image does: without negative values,
/// the largest value becomes 255; otherwise 0 becomes 128, and the value farthest from 0 is 127 away from it.
InputImages visible_images(const Extent& extent, const std::vector<float>& values);

}  // namespace cifar_mpi::report
