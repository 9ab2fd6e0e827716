#pragma once

#include <cstdint>
#include <span>

#include "cifar_mpi/comm/world.hpp"

/// How the steady clocks of several hosts stand to that of rank 0.
namespace cifar_mpi::comm {

/// A question to another host and its answer, in nanoseconds.
struct ClockProbe {
  std::int64_t asked = 0;     ///< by rank 0's clock
  std::int64_t answered = 0;  ///< by the other's
  std::int64_t received = 0;  ///< by rank 0's
};

/// What is to be added to a clock to get rank 0's, at one moment. The true number is within `uncertainty`.
struct ClockReading {
  std::int64_t at = 0;  ///< by the clock that is read
  std::int64_t offset = 0;
  std::int64_t uncertainty = 0;
};

/// Of the probe with the least round trip, as if the way there took as long as the way back; so the uncertainty is half
/// the round trip (Cristian 1989). `probes` must not be empty.
ClockReading read_clock(std::span<const ClockProbe> probes);

/// Between two readings of a clock the offset is taken to change evenly.
struct ClockTranslation {
  ClockReading before, after;

  /// `local` by rank 0's clock. Exact where both offsets are equal.
  std::int64_t to_rank_zero(std::int64_t local) const;
  /// The larger one of the readings'; how far the clocks leave the straight line between these is not in it.
  std::int64_t uncertainty() const;
};

/// Collective. The reading of this rank's clock. On rank 0's host it is {now, 0, 0}: its ranks read one clock. One rank
/// of each other host is asked a few times, and one host after the other, so that the messages do not meet.
ClockReading compare_clocks(const World& world);

}  // namespace cifar_mpi::comm
