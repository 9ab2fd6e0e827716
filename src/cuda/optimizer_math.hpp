#pragma once

#include <cstdint>

#include "cifar_mpi/engine/layout.hpp"

/// Which weight decay and share of the rate each float of a launch has; runs on the host and on the device. What happens to one
/// weight stands in cifar_mpi/optim/step_math.hpp.
namespace cifar_mpi::cuda {

using engine::Segment;

/// What one launch takes by value, so that nothing lies in memory that a replay could lose.
struct Segments {
  static constexpr int kMost = 64;
  Segment items[kMost] = {};
  int count = 0;
};

/// The segment of float `i`; an empty one behind the last.
constexpr Segment segment_of(const Segments& segments, std::uint64_t i) {
  for (int s = 0; s < segments.count; ++s) {
    if (i < segments.items[s].end) return segments.items[s];
  }
  return {};
}

}  // namespace cifar_mpi::cuda
