#pragma once

#include <array>
#include <string>

#include "cifar_mpi/base/names.hpp"
#include "cifar_mpi/optim/schedule.hpp"

/// Local steps: each worker takes several steps alone, then all continue from one point.
namespace cifar_mpi::optim {

/// The outer step, where Δ is the mean over the workers of their weights before − weights after.
///
///   average   w' = w − Δ, which is the mean of the workers' weights (Stich 2019, Lin et al. 2020)
///   nesterov  v' = momentum · v + Δ, w' = w − rate · (Δ + momentum · v') (Douillard et al. 2023)
enum class OuterKind : std::uint8_t { average, nesterov };
constexpr auto names_of(OuterKind) {
  return std::to_array<Name<OuterKind>>({{"average", OuterKind::average}, {"nesterov", OuterKind::nesterov}});
}

struct LocalSteps {
  int steps = 16;  ///< of a worker between two averagings
  OuterKind outer = OuterKind::average;
  double outer_rate = 0.7;  ///< nesterov, as is the next
  double outer_momentum = 0.9;
  double after_epoch = 0.0;  ///< before it every gradient is exchanged
};

/// Memory and planning grow with the steps of a replay.
inline constexpr int kMostLocalSteps = 1024;

/// The outer step as an optimizer whose gradient is Δ, and as a schedule.
OptimizerSpec outer_optimizer(const LocalSteps& local);
ScheduleSpec outer_schedule(const LocalSteps& local);

/// "average", "nesterov (rate 0.7, momentum 0.9)".
std::string describe(const LocalSteps& local);

}  // namespace cifar_mpi::optim
