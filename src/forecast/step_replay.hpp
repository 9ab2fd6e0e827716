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
    double messages_s = 0.0;     ///< of `work`: in which the processor moved messages instead
  };
  std::vector<Action> actions;
};

struct Recording {
  std::vector<RecordedStep> steps;  ///< of each rank in each complete step
  std::vector<report::CollectiveOrder> collectives;
  double messages_s = 0.0;  ///< mean of a rank in a step
};
Recording record_of(const report::Timeline& timeline);

/// The recorded step that a simulated rank repeats in its step number `step`: drawn at random, and the same each time.
const RecordedStep& drawn_step(const Recording& recording, std::size_t rank, int step);

/// How many times as much a rank does as in the recording.
struct Amount {
  double batch = 1.0;
  double messages = 1.0;
};

/// Means of a rank in a step, over the recorded steps that these ranks repeat in their first `steps` steps.
struct DrawnWork {
  double fixed_s = 0.0, batch_s = 0.0;
};
DrawnWork drawn_work(const Recording& recording, int ranks, int steps);

/// How long the action's work takes.
double seconds_of(const RecordedStep::Action& action, const Amount& amount);

/// Runs collective `index`; `when` has the time at which each rank is ready for it, and then the time at which it ends there.
using Collectives = std::function<void(std::size_t index, std::vector<double>& when)>;

/// Mean seconds of a step over `steps` steps on `ranks` ranks.
double step_seconds(const Recording& recording, int ranks, const Amount& amount, int steps,
                    const Collectives& collectives);

}  // namespace cifar_mpi::forecast
