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

/// The share of zeros; NaN where there are no values.
inline double sparsity(const engine::ValueCounts& counts) {
  return static_cast<double>(counts.zeros) / static_cast<double>(counts.values());
}

/// What is looked at every --summary-every steps.
struct StepSummary {
  std::uint64_t step = 0;              ///< completed steps
  std::vector<NamedCounts> variables;  ///< by parameter, as they are after the step
  std::vector<NamedCounts>
      gradients;  ///< likewise, of the step, summed over all ranks; before they are clipped
  /// By layer, of rank 0's batch in the step, or of its first part.
  std::vector<NamedCounts> activations;
  double gradient_norm = 0.0;  ///< of all gradients; 0: told at every log line
};

/// Some images as the network sees them, made visible: [count, height, width, channels].
struct InputImages {
  Extent extent;
  std::vector<std::uint8_t> pixels;

  bool empty() const { return pixels.empty(); }
  /// In std::size_t: of a file's images the pixels of one may be more than an int holds.
  std::size_t count() const {
    const auto size = [](int n) { return static_cast<std::size_t>(n); };
    return pixels.size() / (size(extent.height) * size(extent.width) * size(extent.channels));
  }
};

/// Values [n, h, w, c] to 0..255, each image by itself as tf.summary.image does it: what is not negative so that
/// the largest value is 255; else 0 becomes 128, and the value farthest from 0 lies 127 from there.
InputImages visible_images(const Extent& extent, const std::vector<float>& values);

}  // namespace cifar_mpi::report
