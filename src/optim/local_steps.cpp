#include "cifar_mpi/optim/local_steps.hpp"

#include <fmt/core.h>

namespace cifar_mpi::optim {

OptimizerSpec outer_optimizer(const LocalSteps& local) {
  OptimizerSpec spec;
  if (local.outer == OuterKind::nesterov) spec.kind = OptimizerKind::nesterov;
  spec.momentum = local.outer_momentum;
  return spec;
}

ScheduleSpec outer_schedule(const LocalSteps& local) {
  ScheduleSpec spec;
  spec.base_rate = local.outer == OuterKind::nesterov ? local.outer_rate : 1.0;
  spec.decay_factor = 1.0;
  return spec;
}

std::string describe(const LocalSteps& local) {
  if (local.outer == OuterKind::average) return "average";
  return fmt::format("nesterov (rate {:g}, momentum {:g})", local.outer_rate, local.outer_momentum);
}

}  // namespace cifar_mpi::optim
