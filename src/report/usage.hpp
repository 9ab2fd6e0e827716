#pragma once

#include <vector>

#include "report/sampled_steps.hpp"

namespace cifar_mpi::report {

/// The times that efficiencies and verdict are computed from, in ns over all sampled steps.
struct Usage {
  std::vector<double> useful;  ///< U(r), by the index of the rank
  double useful_sum = 0.0;
  double useful_most = 0.0;       ///< max U(r)
  double useful_most_each = 0.0;  ///< Σ_s max_r U(r,s)
  double time = 0.0;              ///< T
  double ideal = 0.0;             ///< T_ideal, between `useful_most` and `time`
};
Usage usage_of(const Timeline& timeline, const SampledSteps& sampled);

/// The useful time of a rank in a step.
double useful_ns(const Timeline& timeline, const std::vector<Stretch>& stretches);

}  // namespace cifar_mpi::report
