#pragma once

#include <array>
#include <cstdint>
#include <string_view>
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
};

/// Replays an all-reduce of `floats` elements round by round; each element takes `float_bytes` in a message.
///
///   when  [ranks] seconds: when each rank is ready for the all-reduce; replaced by when it ends on that rank
///
/// Messages inside a node are copies at the speed of memory. Ranks of a node that send over its link in the same round
/// share it.
void all_reduce(Pattern pattern, double floats, double float_bytes, const Cluster& cluster,
                std::vector<double>& when);

/// Seconds of an all-reduce that all ranks begin at once.
double all_reduce_seconds(Pattern pattern, double floats, double float_bytes, const Cluster& cluster);

}  // namespace cifar_mpi::forecast
