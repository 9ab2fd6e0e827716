#pragma once

#include <cstdint>

#include "cifar_mpi/engine/layout.hpp"

/// Weight decay and share of the rate of each float of a launch; runs on the host and on the device.
/// cifar_mpi/optim/step_math.hpp has the update of a weight.
namespace cifar_mpi::cuda {

using engine::Segment;

/// Launch arguments by value, so that a replay needs no memory that could be freed.
struct Segments {
  static constexpr int kMost = 64;
  Segment items[kMost] = {};
  int count = 0;
};

/// The segment of float `i`; an empty one after the last.
constexpr Segment segment_of(const Segments& segments, std::uint64_t i) {
  for (int s = 0; s < segments.count; ++s) {
    if (i < segments.items[s].end) return segments.items[s];
  }
  return {};
}

}  // namespace cifar_mpi::cuda
