#pragma once

#include <array>
#include <string>

#include "cifar_mpi/base/names.hpp"
#include "cifar_mpi/optim/schedule.hpp"

/// Local steps: every worker takes some of its own, then all go on from one point.
namespace cifar_mpi::optim {

/// What is done with Δ, the mean over the workers of what each has moved, weights before − weights after.
///
///   average   w' = w − Δ, so the mean of the workers' weights (Stich 2019, Lin et al. 2020)
///   nesterov  v' = momentum · v + Δ, w' = w − rate · (Δ + momentum · v') (Douillard et al. 2023): NesterovRule
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

/// The outer step as an optimizer and a schedule: of Δ as the gradient.
OptimizerSpec outer_optimizer(const LocalSteps& local);
ScheduleSpec outer_schedule(const LocalSteps& local);

/// "average", "nesterov (rate 0.7, momentum 0.9)".
std::string describe(const LocalSteps& local);

}  // namespace cifar_mpi::optim
