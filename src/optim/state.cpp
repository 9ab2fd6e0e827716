#include "cifar_mpi/optim/state.hpp"

namespace cifar_mpi::optim {
namespace {

constexpr StateRow kWeights{StateRole::weights, "/model", "weights after `step` updates",
                            "the weights",      true,     false};
constexpr StateRow kAverage{
    StateRole::average, "/ema", "exponential moving averages of /model; what evaluation uses",
    "the averages",     false,  false};
constexpr StateRow kMomentum{StateRole::momentum,
                             "/momentum",
                             "what the optimizer has gathered of the gradients of /model; see /optimizer",
                             "the momenta",
                             true,
                             true};
constexpr StateRow kMoment1{
    StateRole::moment1,  "/moment1", "moving averages of the gradients of /model, from zero; see /optimizer",
    "the first moments", true,       true};
constexpr StateRow kMoment2{StateRole::moment2,
                            "/moment2",
                            "moving averages of the squared gradients of /model, from zero; see /optimizer",
                            "the second moments",
                            true,
                            true};

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
