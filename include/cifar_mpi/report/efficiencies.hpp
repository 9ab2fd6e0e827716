#pragma once

#include <optional>
#include <vector>

#include "cifar_mpi/report/timeline.hpp"

namespace cifar_mpi::report {

/// How well the ranks are used, by the factors of the POP project: C. Rosas, J. Giménez, J. Labarta, Scalability
/// Prediction for Fundamental Performance Factors, Supercomputing Frontiers and Innovations 1 (2), 2014, and
/// https://pop-coe.eu/node/69, "POP Standard Metrics for Parallel Performance Analysis".
///
/// The sampled steps count as one program, one behind the other. Of P ranks, rank r in step s is useful for U(r,s),
/// the time in which at least one of its tasks of kind `work` runs; U(r) is its sum over the steps, T(r) the time
/// that they took it, T = max T(r).
///
///   parallel efficiency       Σ U(r) / (P·T)        = load balance · communication efficiency
///   load balance              mean U(r) / max U(r)
///   communication efficiency  max U(r) / T          = serialization · transfer
///   serialization             max U(r) / T_ideal
///   transfer                  T_ideal / T
///   load balance per step     Σ U(r) / (P · Σ_s max_r U(r,s))
///   computation scaling       (U / images of the baseline) / (U / images)
///
/// T_ideal is the time on a network that takes none: the work of every rank is replayed with its measured times, and
/// a collective ends on all ranks when the last of them is ready for it. What the host does between tasks stays, and
/// so does by how much ranks begin a step one later than the other: both count under serialization. There counts too
/// what the slowest rank costs where it is another in every step; load balance per step shows that, load balance does
/// not. It is at most load balance.
///
/// POP calls 0.8 and more acceptable. All but computation scaling are in (0, 1] where some work was seen (0: none
/// in a time that is not zero), and 1 where no time was seen at all.
struct Efficiencies {
  int ranks = 0;                   ///< that were seen
  std::vector<int> missing_ranks;  ///< of the world, without a slice in any step
  int steps = 0;                   ///< of which all `ranks` were seen, and all of it: the others do not count
  int left_out_steps = 0;
  double step_ms = 0.0;  ///< T / steps
  double parallel = 1.0;
  double load_balance = 1.0;
  double communication = 1.0;
  double serialization = 1.0;
  double transfer = 1.0;
  double load_balance_per_step = 1.0;
  std::optional<double> computation_scaling;  ///< with a baseline that says how long an image takes
  int baseline_ranks = 0;                     ///< its ranks
};

/// Of a timeline from anywhere: indices that point nowhere are left out, slices are cut to their step.
Efficiencies efficiencies(const Timeline& timeline);
/// With computation scaling, per image, against a run of fewer ranks.
Efficiencies efficiencies(const Timeline& timeline, const Timeline& baseline);

}  // namespace cifar_mpi::report
