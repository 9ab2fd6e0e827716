#pragma once

#include <cstdint>

namespace cifar_mpi::engine {

/// The steps [begin, end) of a run, counted from 0, that a replay of its program makes, or several replays in a row.
struct Replay {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  std::uint64_t steps() const { return end - begin; }
  bool overlaps(const Replay& other) const { return begin < other.end && other.begin < end; }
  bool has(std::uint64_t step) const { return step >= begin && step < end; }
  /// Whether the number of completed steps reaches or passes a multiple of `every`, so that an event with
  /// this interval is due.
  bool crosses(std::uint64_t every) const { return begin / every != end / every; }
};

}  // namespace cifar_mpi::engine
