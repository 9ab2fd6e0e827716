#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cifar_mpi/report/timeline.hpp"
#include "report/sampled_steps.hpp"

namespace cifar_mpi::forecast {

/// What a rank did in a recorded step: work, and where it meets the collectives of the step.
struct RecordedStep {
  enum class Kind : std::uint8_t { work, ready, wait };
  struct Action {
    Kind kind = Kind::work;
    std::size_t collective = 0;  ///< of `ready` and `wait`: which of the step's, in the order of their lane
    double fixed_s = 0.0;        ///< of `work`: the same for any batch,
    double batch_s = 0.0;        ///< and in proportion to the batch
  };
  std::vector<Action> actions;
};

struct Recording {
  std::vector<RecordedStep> steps;  ///< of each rank in each complete step
  std::vector<report::CollectiveOrder> collectives;
  double fixed_s = 0.0, batch_s = 0.0;  ///< work of the mean rank in a step
};
Recording record_of(const report::Timeline& timeline);

/// Runs collective `index`: `when` is when each rank is ready for it, and becomes when it ends there.
using Collectives = std::function<void(std::size_t index, std::vector<double>& when)>;

/// Seconds per step over `steps` steps of `ranks` ranks, whose batch is `batch` times the recorded one.
double step_seconds(const Recording& recording, int ranks, double batch, int steps,
                    const Collectives& collectives);

}  // namespace cifar_mpi::forecast
