#include "cifar_mpi/optim/state.hpp"

namespace cifar_mpi::optim {
namespace {

constexpr StateRow kWeights{.role = StateRole::weights,
                            .group = "/model",
                            .running = "/running",
                            .meaning = "weights after `step` updates",
                            .what = "the weights",
                            .compared = true,
                            .of_optimizer = false};
constexpr StateRow kAverage{.role = StateRole::average,
                            .group = "/ema",
                            .running = "/running_ema",
                            .meaning = "exponential moving averages of /model; what evaluation uses",
                            .what = "the averages",
                            .compared = false,
                            .of_optimizer = false};

constexpr StateRow of_optimizer(StateRole role, const char* group, const char* meaning, const char* what) {
  return {role, group, nullptr, meaning, what, true, true};
}
constexpr StateRow kMomentum =
    of_optimizer(StateRole::momentum, "/momentum",
                 "what the optimizer has gathered of the gradients of /model; see /optimizer", "the momenta");
constexpr StateRow kMoment1 = of_optimizer(
    StateRole::moment1, "/moment1", "moving averages of the gradients of /model, from zero; see /optimizer",
    "the first moments");
constexpr StateRow kMoment2 = of_optimizer(
    StateRole::moment2, "/moment2",
    "moving averages of the squared gradients of /model, from zero; see /optimizer", "the second moments");

}  // namespace

std::vector<StateRow> state_rows(OptimizerKind optimizer) {
  switch (optimizer) {
    case OptimizerKind::sgd:
      break;
    case OptimizerKind::momentum:
    case OptimizerKind::nesterov:
      return {kWeights, kAverage, kMomentum};
    case OptimizerKind::adamw:
      return {kWeights, kAverage, kMoment1, kMoment2};
  }
  return {kWeights, kAverage};
}

}  // namespace cifar_mpi::optim
