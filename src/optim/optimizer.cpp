#include "cifar_mpi/optim/optimizer.hpp"

#include <fmt/core.h>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::optim {
namespace {

/// As a float it must not be zero, which is what keeps padding from 0/0.
constexpr double kLeastEps = 1e-30;

bool has_momentum(OptimizerKind kind) {
  return kind == OptimizerKind::momentum || kind == OptimizerKind::nesterov;
}

}  // namespace

void check(const OptimizerSpec& spec) {
  const OptimizerSpec usual;
  const auto share = [](const char* option, double value) {
    if (value >= 0.0 && value < 1.0) return;
    throw Error(ErrorKind::usage, fmt::format("{} must lie in [0, 1), not {:g}", option, value));
  };
  const auto belongs = [&](bool has, bool as_usual, const char* option, const char* whose) {
    if (has || as_usual) return;
    throw Error(ErrorKind::usage, concat(option, " belongs to --optimizer ", whose, ", not to ",
                                         to_string(spec.kind), "; leave it out"));
  };
  const bool adamw = spec.kind == OptimizerKind::adamw;
  share("--momentum", spec.momentum);
  share("--beta1", spec.beta1);
  share("--beta2", spec.beta2);
  if (!(spec.eps >= kLeastEps && spec.eps <= 1.0)) {
    throw Error(ErrorKind::usage,
                fmt::format("--eps must lie between {:g} and 1, not {:g}", kLeastEps, spec.eps));
  }
  belongs(has_momentum(spec.kind), spec.momentum == usual.momentum, "--momentum", "momentum and nesterov");
  belongs(adamw, spec.beta1 == usual.beta1, "--beta1", "adamw");
  belongs(adamw, spec.beta2 == usual.beta2, "--beta2", "adamw");
  belongs(adamw, spec.eps == usual.eps, "--eps", "adamw");
}

std::vector<std::pair<std::string, double>> numbers_of(const OptimizerSpec& spec) {
  if (has_momentum(spec.kind)) return {{"momentum", spec.momentum}};
  if (spec.kind == OptimizerKind::adamw)
    return {{"beta1", spec.beta1}, {"beta2", spec.beta2}, {"eps", spec.eps}};
  return {};
}

std::string describe(const OptimizerSpec& spec) {
  std::string numbers;
  for (const auto& [name, value] : numbers_of(spec)) {
    numbers += fmt::format("{}{}{:g}", numbers.empty() ? "" : ", ",
                           name == to_string(spec.kind) ? "" : name + " ", value);
  }
  return numbers.empty() ? std::string(to_string(spec.kind))
                         : concat(to_string(spec.kind), " (", numbers, ")");
}

std::string_view formula(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::sgd:
      return "plain stochastic gradient descent keeps no state but the step";
    case OptimizerKind::momentum:
      return "v = momentum * v + gradient + weight_decay * w; w = w - rate * v; /momentum holds v";
    case OptimizerKind::nesterov:
      return "g = gradient + weight_decay * w; v = momentum * v + g; w = w - rate * (g + momentum * v); "
             "/momentum holds v";
    case OptimizerKind::adamw:
      return "m = beta1 * m + (1 - beta1) * gradient; v = beta2 * v + (1 - beta2) * gradient^2; "
             "w = w - rate * (m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + eps) + weight_decay * w), "
             "step counted from 1; /moment1 holds m, /moment2 holds v";
  }
  return "";
}

}  // namespace cifar_mpi::optim
