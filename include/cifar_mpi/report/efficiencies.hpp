#pragma once

#include <optional>
#include <vector>

#include "cifar_mpi/report/timeline.hpp"

namespace cifar_mpi::report {

/// The utilization of the ranks, by the factors of the POP project: C. Rosas, J. Giménez, J. Labarta,
/// Scalability Prediction for Fundamental Performance Factors, Supercomputing Frontiers and Innovations 1
/// (2), 2014, and https://pop-coe.eu/node/69, "POP Standard Metrics for Parallel Performance Analysis".
///
/// The sampled steps are treated as one program, one step after another. With P ranks, U(r,s) is the useful
/// time of rank r in step s, the time in which at least one of its tasks of kind `work` runs; U(r) is its sum
/// over the steps, T(r) the time that the steps took on that rank, T = max T(r).
///
///   parallel efficiency       Σ U(r) / (P·T)        = load balance · communication efficiency
///   load balance              mean U(r) / max U(r)
///   communication efficiency  max U(r) / T          = serialization · transfer
///   serialization             max U(r) / T_ideal
///   transfer                  T_ideal / T
///   load balance per step     Σ U(r) / (P · Σ_s max_r U(r,s))
///   computation scaling       (U / images of the baseline) / (U / images)
///
/// T_ideal is the time with an instantaneous network: the work of every rank is replayed with its measured
/// times, and a collective ends on all ranks when the last of them is ready for it. The host's time between
/// tasks stays, and so do the differences between the starts of a step on different ranks: both count as
/// serialization. So does the cost of a slowest rank that changes from step to step; load balance per step,
/// which is at most load balance, shows that cost; load balance does not.
///
/// POP calls 0.8 and more acceptable. All but computation scaling are in (0, 1] if any work was recorded, 0
/// if there was time without work, and 1 if no time was recorded at all.
struct Efficiencies {
  int ranks = 0;                   ///< with recorded steps
  std::vector<int> missing_ranks;  ///< ranks of the world without a slice in any step
  int steps = 0;                   ///< steps that all `ranks` recorded completely; the others do not count
  int left_out_steps = 0;
  double step_ms = 0.0;  ///< T / steps
  double parallel = 1.0;
  double load_balance = 1.0;
  double communication = 1.0;
  double serialization = 1.0;
  double transfer = 1.0;
  double load_balance_per_step = 1.0;
  std::optional<double> computation_scaling;  ///< if the baseline has the time per image
  int baseline_ranks = 0;                     ///< its ranks
};

/// Accepts untrusted timelines: ignores invalid indices and cuts slices to their step.
Efficiencies efficiencies(const Timeline& timeline);
/// With computation scaling, per image, against a run of fewer ranks.
Efficiencies efficiencies(const Timeline& timeline, const Timeline& baseline);

}  // namespace cifar_mpi::report
