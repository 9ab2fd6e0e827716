#include "cifar_mpi/optim/state.hpp"

namespace cifar_mpi::optim {
namespace {

constexpr StateRow kWeights{.role = StateRole::weights,
                            .group = "/model",
                            .running = "/running",
                            .meaning = "weights after `step` updates",
                            .what = "the weights"};
constexpr StateRow kAverage{.role = StateRole::average,
                            .group = "/ema",
                            .running = "/running_ema",
                            .meaning = "exponential moving averages of /model; what evaluation uses",
                            .what = "the averages",
                            .compared = false};
constexpr StateRow kOuterMomentum{.role = StateRole::outer_momentum,
                                  .group = "/outer_momentum",
                                  .meaning =
                                      "what averagings have gathered of the moves of /model: "
                                      "v = momentum * v + weights before - mean of weights after",
                                  .what = "the outer momenta",
                                  .from_zero = true};

constexpr StateRow kSlow{.role = StateRole::slow,
                         .group = "/slow",
                         .running = "/running_slow",
                         .meaning =
                             "slow weights of lookahead: every so many steps they move towards /model, "
                             "which then returns to them",
                         .what = "the slow weights"};

constexpr StateRow of_optimizer(StateRole role, const char* group, const char* meaning, const char* what) {
  return {role, group, nullptr, meaning, what, true, true, true};
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

std::vector<StateRow> state_rows(OptimizerKind optimizer, bool outer_momentum, bool slow) {
  std::vector<StateRow> rows{kWeights, kAverage};
  switch (optimizer) {
    case OptimizerKind::sgd:
      break;
    case OptimizerKind::momentum:
    case OptimizerKind::nesterov:
    case OptimizerKind::muon:
      rows.push_back(kMomentum);
      break;
    case OptimizerKind::adamw:
      rows.push_back(kMoment1);
      rows.push_back(kMoment2);
      break;
  }
  if (outer_momentum) rows.push_back(kOuterMomentum);
  if (slow) rows.push_back(kSlow);
  return rows;
}

}  // namespace cifar_mpi::optim
