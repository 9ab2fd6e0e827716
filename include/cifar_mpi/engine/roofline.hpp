#pragma once

#include <algorithm>
#include <limits>

#include "cifar_mpi/engine/program.hpp"

/// The roofline model (S. Williams, A. Waterman, D. Patterson, CACM 52(4), 2009): the time of a task if only
/// the device's limits mattered.
namespace cifar_mpi::engine {

/// Measured limits of a device; infinite means no limit.
struct RooflineLimits {
  double flops = std::numeric_limits<double>::infinity();  ///< FLOP/s of a large product
  double bytes = std::numeric_limits<double>::infinity();  ///< bytes read and written per second
};

/// Bytes that `task` reads and writes at least.
inline double bytes_moved(const Task& task) {
  if (task.cost.bytes > 0.0) return task.cost.bytes;
  double bytes = 0.0;
  for (const auto* const ranges : {&task.reads, &task.writes}) {
    for (const Bytes& range : *ranges) bytes += static_cast<double>(range.size);
  }
  return bytes;
}

/// The least time for so many operations and bytes: whichever of the two takes longer.
inline double floor_seconds(double flops, double bytes, const RooflineLimits& limits) {
  return std::max(flops / limits.flops, bytes / limits.bytes);
}

}  // namespace cifar_mpi::engine
