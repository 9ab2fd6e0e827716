#include "cifar_mpi/optim/local_steps.hpp"

#include <fmt/core.h>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::optim {
namespace {

constexpr double kLargest = 1e9;  // a larger value is a typing error

[[noreturn]] void refuse(const std::string& text) { throw Error(ErrorKind::usage, text); }

}  // namespace

void check(const LocalSteps& local) {
  const LocalSteps usual;
  if (local.steps < 1 || local.steps > kMostLocalSteps) {
    refuse(concat("--local-steps must lie between 1 and ", kMostLocalSteps, ", not ", local.steps,
                  "; it is the number of steps between two averagings"));
  }
  if (!(local.outer_rate > 0.0 && local.outer_rate <= kLargest))
    refuse(fmt::format("--outer-lr must be above 0 and at most {:g}, not {:g}", kLargest, local.outer_rate));
  if (!(local.outer_momentum >= 0.0 && local.outer_momentum < 1.0))
    refuse(fmt::format("--outer-momentum must lie in [0, 1), not {:g}", local.outer_momentum));
  if (!(local.after_epoch >= 0.0 && local.after_epoch <= kLargest))
    refuse(fmt::format("--local-after must lie between 0 and {:g}, not {:g}", kLargest, local.after_epoch));
  const auto belongs = [&](double value, double as_usual, const char* option) {
    if (local.outer == OuterKind::nesterov || value == as_usual) return;
    refuse(concat(option, " belongs to --outer nesterov, not to ", to_string(local.outer), "; leave it out"));
  };
  belongs(local.outer_rate, usual.outer_rate, "--outer-lr");
  belongs(local.outer_momentum, usual.outer_momentum, "--outer-momentum");
}

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
