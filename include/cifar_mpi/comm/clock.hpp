#pragma once

#include <cstdint>
#include <span>

#include "cifar_mpi/comm/world.hpp"

/// Offsets of the steady clocks of other hosts to that of rank 0.
namespace cifar_mpi::comm {

/// A question to another host and its answer, in nanoseconds.
struct ClockProbe {
  std::int64_t asked = 0;     ///< by rank 0's clock
  std::int64_t answered = 0;  ///< by the other's
  std::int64_t received = 0;  ///< by rank 0's
};

/// The offset from a clock to rank 0's, at one moment. The true offset is within `uncertainty`.
struct ClockReading {
  std::int64_t at = 0;  ///< by the clock in question
  std::int64_t offset = 0;
  std::int64_t uncertainty = 0;
};

/// Of the probe with the least round trip, assuming equal times in both directions; the uncertainty is half
/// the round trip (Cristian 1989). `probes` must not be empty.
ClockReading read_clock(std::span<const ClockProbe> probes);

/// Interpolates the offset linearly between two readings of a clock.
struct ClockTranslation {
  ClockReading before, after;

  /// Converts `local` to rank 0's clock. Exact if both offsets are equal.
  std::int64_t to_rank_zero(std::int64_t local) const;
  /// The larger one of the readings'; it does not include deviations from the straight line between them.
  std::int64_t uncertainty() const;
};

/// Collective. The reading of this rank's clock. On rank 0's host it is {now, 0, 0}: its ranks share one clock. One
/// rank of each other host is probed a few times, one host after another, so that the messages do not interfere.
ClockReading compare_clocks(const World& world);

}  // namespace cifar_mpi::comm
