#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cifar_mpi/comm/benchmark.hpp"

/// Common code of the benchmarks of collectives, for host and device arrays.
namespace cifar_mpi::comm {

/// This rank's input: from -1 to 1, so that the sums are exact in any order, also on a 16-bit wire up to 256 ranks.
void fill_inputs(std::span<float> data, int rank);

/// Elements that are not the exact sum of those inputs, over all ranks. Collective.
std::uint64_t wrong_sums(std::span<const float> data, const World& world);

/// An operation that runs once in every round, on all ranks at once. Empty functions do nothing.
struct Measured {
  std::function<void(int)> plan;  ///< before the first run with that many repetitions
  std::function<void()> prepare;  ///< before each run, outside the clock
  std::function<void(int)> run;   ///< runs it that many times; returns when the last one is done
  int times = 1;                  ///< in one run
  std::vector<double> seconds;    ///< of each run, per repetition, on the slowest rank; sorted at the end

  double median() const;
};

/// The least time of a run, so that the clock and the start of a run have little effect.
struct Pace {
  double run_s = 0.0;
  int most_copies = 1;  ///< in one run
};

/// Alternates between a copy and the sums: in every round each runs once, so that a disturbance affects all
/// of them, after a barrier of all ranks. All sums have the same number of repetitions; the copy has its own.
/// All calls are collective; an exception of `plan` or `run` ends them on this rank alone.
class Rounds {
 public:
  Rounds(const World& world, Pace pace, Measured copy, std::vector<Measured> sums);

  /// Runs as many rounds as fit in about `seconds`, at least five. Then runs each sum once more, for its result.
  void run(double seconds);

  const std::vector<Measured>& sums() const { return sums_; }
  /// The measurements of `sum` (all but names, MPI's time and wrong sums), at this length.
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
