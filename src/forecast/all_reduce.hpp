#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "cifar_mpi/base/names.hpp"
#include "cifar_mpi/forecast/links.hpp"

namespace cifar_mpi::forecast {

/// The patterns of messages that a collective can have; comm/collectives.hpp describes them.
enum class Pattern : std::uint8_t { ring, doubling, two_level };
constexpr auto names_of(Pattern) {
  return std::to_array<Name<Pattern>>(
      {{"ring", Pattern::ring}, {"doubling", Pattern::doubling}, {"two-level", Pattern::two_level}});
}

/// Ranks [0, per_node) are on the first node, the next ones on the second, and so on.
struct Cluster {
  Links links;
  int ranks = 1;
  int per_node = 1;

  int nodes() const { return (ranks + per_node - 1) / per_node; }
  /// Ranks of a node that own a slice with two-level: as many as the smallest node has.
  int owners() const { return ranks % per_node == 0 ? per_node : ranks % per_node; }
};

/// Replays an all-reduce of `floats` elements, of which each takes `float_bytes` in a message, round by round.
///
/// `when` is when each rank is ready for it, and becomes when it ends there, in seconds. Inside a node messages are
/// copies at the speed of memory; a link is shared by the ranks of a node that send over it in the same round.
void all_reduce(Pattern pattern, double floats, double float_bytes, const Cluster& cluster,
                std::vector<double>& when);

/// Seconds of one that all ranks begin at once.
double all_reduce_seconds(Pattern pattern, double floats, double float_bytes, const Cluster& cluster);

}  // namespace cifar_mpi::forecast
