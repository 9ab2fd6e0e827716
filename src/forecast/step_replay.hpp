#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cifar_mpi/report/timeline.hpp"
#include "report/sampled_steps.hpp"

namespace cifar_mpi::forecast {

/// The work of a rank in a recorded step, and the points where it is ready for a collective or waits for one.
struct RecordedStep {
  enum class Kind : std::uint8_t { work, ready, wait };
  struct Action {
    Kind kind = Kind::work;
    std::size_t collective = 0;  ///< of `ready` and `wait`: index in the order of the lane
    double fixed_s = 0.0;        ///< of `work`: does not depend on the batch
    double batch_s = 0.0;        ///< of `work`: proportional to the batch
  };
  std::vector<Action> actions;
};

struct Recording {
  std::vector<RecordedStep> steps;  ///< of each rank in each complete step
  std::vector<report::CollectiveOrder> collectives;
  double fixed_s = 0.0, batch_s = 0.0;  ///< mean work of a rank in a step
};
Recording record_of(const report::Timeline& timeline);

/// Runs collective `index`; `when` has the time at which each rank is ready for it, and then the time at which it ends there.
using Collectives = std::function<void(std::size_t index, std::vector<double>& when)>;

/// Mean seconds of a step over `steps` steps on `ranks` ranks, with `batch` times the recorded batch per rank.
double step_seconds(const Recording& recording, int ranks, double batch, int steps,
                    const Collectives& collectives);

}  // namespace cifar_mpi::forecast
