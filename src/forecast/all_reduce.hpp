#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cifar_mpi/base/names.hpp"
#include "cifar_mpi/forecast/links.hpp"

namespace cifar_mpi::forecast {

/// The message patterns of the all-reduces; the files in src/comm describe them.
enum class Pattern : std::uint8_t { ring, doubling, two_level };
constexpr auto names_of(Pattern) {
  return std::to_array<Name<Pattern>>(
      {{"ring", Pattern::ring}, {"doubling", Pattern::doubling}, {"two-level", Pattern::two_level}});
}

/// Ranks [0, per_node) are on the first node, the next per_node ranks on the second, and so on.
struct Cluster {
  Links links;
  int ranks = 1;
  int per_node = 1;

  int nodes() const { return (ranks + per_node - 1) / per_node; }
  /// Ranks of a node that own a slice in `two_level`: as many as the smallest node has.
  int owners() const { return ranks % per_node == 0 ? per_node : ranks % per_node; }
  /// Seconds in which an owner sums its slice of the node's arrays, or writes it to all of them.
  double slice_s(double floats) const {
    return per_node == 1 ? 0.0
                         : sizeof(float) * floats / owners() * (per_node + 1) / links.memory_bytes_per_s;
  }
};

/// The messages in which a place of a ring sends its part of the array in each round.
struct RingChunks {
  std::size_t count = 1;
  double floats = 0.0;  ///< of each
};
RingChunks ring_chunks(double floats, int places, bool network);

/// Replays an all-reduce of `floats` elements; each element takes `float_bytes` in a message.
///
///   when  [ranks] seconds: when each rank is ready for the all-reduce; replaced by when it ends on that rank
///
/// Messages inside a node are copies at the speed of memory. A rank sends one message after the other to the same rank.
/// Messages of several ranks of a node share its link, in each direction, while they are on it. In `two_level` the ranks of a
/// node keep step. The ring does not limit how far a place runs ahead of the next.
void all_reduce(Pattern pattern, double floats, double float_bytes, const Cluster& cluster,
                std::vector<double>& when);

/// The same for `doubling`. A message of less than kSentAtOnce bytes starts when its sender is ready, as in Open MPI over TCP;
/// a longer one also waits for its receiver. Takes O(n log n) for the n = P log P messages of P ranks.
void doubling(double floats, double float_bytes, const Cluster& cluster, std::vector<double>& when);
constexpr double kSentAtOnce = 64 << 10;

/// Seconds of an all-reduce that all ranks begin at once.
double all_reduce_seconds(Pattern pattern, double floats, double float_bytes, const Cluster& cluster);

}  // namespace cifar_mpi::forecast
