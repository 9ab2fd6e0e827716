#include "cifar_mpi/optim/state.hpp"

namespace cifar_mpi::optim {
namespace {

constexpr StateRow kRows[] = {
    {StateRole::weights, "/model", "weights after `step` updates", "the weights", true},
    {StateRole::average, "/ema", "exponential moving averages of /model; what evaluation uses",
     "the averages", false},
};

}  // namespace

std::span<const StateRow> state_rows() { return kRows; }

}  // namespace cifar_mpi::optim
