#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cifar_mpi/comm/benchmark.hpp"

/// What the benchmarks of the collectives share, wherever the arrays lie.
namespace cifar_mpi::comm {

/// What this rank adds: from -1 to 1, so that the sums are exact in any order, also on a 16-bit wire up to
/// 256 ranks.
void fill_inputs(std::span<float> data, int rank);

/// Elements that are not the exact sum of those inputs, over all ranks. Collective.
std::uint64_t wrong_sums(std::span<const float> data, const World& world);

/// Something that takes its turn in every round, on all ranks at once. Empty functions do nothing.
struct Measured {
  std::function<void(int)> plan;  ///< before it is first run that many times in a row
  std::function<void()> prepare;  ///< before each run, outside the clock
  std::function<void(int)> run;   ///< does it that many times in a row; returns when the last is done
  int times = 1;                  ///< in one run
  std::vector<double> seconds;    ///< each run's, of one, of the slowest rank; sorted when all are done

  double median() const;
};

/// How long a run shall be at least, so that the clock and what starts a run hardly count.
struct Pace {
  double run_s = 0.0;
  int most_copies = 1;  ///< in one run
};

/// Lets a copy and the sums take turns: in every round each runs once, so that a disturbance meets all alike,
/// and all ranks meet at a barrier before each run. All sums of a run are as many; the copy has a number of
/// its own. All calls are collective; what `plan` and `run` throw ends them on this rank alone.
class Rounds {
 public:
  Rounds(const World& world, Pace pace, Measured copy, std::vector<Measured> sums);

  /// As many rounds as fit in about `seconds`, five at least. Then each sum once more, for its result.
  void run(double seconds);

  const std::vector<Measured>& sums() const { return sums_; }
  /// What was measured of `sum` (all but names, MPI's time and wrong sums), at this length.
  AllReduceTiming timing(const Measured& sum, std::size_t bytes) const;

 private:
  double round();
  void time(Measured& measured);
  void plan(Measured& measured, int times);
  void choose_times();
  void forget();

  const World& world_;
  Pace pace_;
  Measured copy_;
  std::vector<Measured> sums_;
};

}  // namespace cifar_mpi::comm
