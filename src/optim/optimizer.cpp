#include "cifar_mpi/optim/optimizer.hpp"

#include <fmt/core.h>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::optim {
namespace {

bool has_momentum(OptimizerKind kind) {
  return kind == OptimizerKind::momentum || kind == OptimizerKind::nesterov;
}

}  // namespace

std::vector<std::pair<std::string, double>> numbers_of(const OptimizerSpec& spec) {
  if (has_momentum(spec.kind)) return {{"momentum", spec.momentum}};
  if (spec.kind == OptimizerKind::adamw)
    return {{"beta1", spec.beta1}, {"beta2", spec.beta2}, {"eps", spec.eps}};
  if (spec.kind == OptimizerKind::muon) {
    return {{"momentum", spec.momentum},
            {"muon-momentum", spec.muon_momentum},
            {"bias-lr", spec.bias_rate},
            {"ends-lr", spec.ends_rate},
            {"muon-normalize", spec.normalize_every}};
  }
  return {};
}

std::string describe(const OptimizerSpec& spec) {
  std::string numbers;
  for (const auto& [name, value] : numbers_of(spec)) {
    const bool is_rate_of_all = value == 0.0 && name.ends_with("-lr");
    const bool is_never = value == 0.0 && name == "muon-normalize";
    numbers += concat(numbers.empty() ? "" : ", ", name == to_string(spec.kind) ? "" : name + " ",
                      is_rate_of_all ? "lr"
                      : is_never     ? "never"
                                     : fmt::format("{:g}", value));
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
    case OptimizerKind::muon:
      return "weights of hidden layers, as matrices [out, rest]: v = muon-momentum * v + gradient; "
             "X = gradient + muon-momentum * v; X = X / (norm(X) + 1e-7); three times A = X * transpose(X), "
             "X = 3.4445 * X + (-4.7750 * A + 2.0315 * A * A) * X; "
             "w = w - rate * (sqrt(max(1, out / rest)) * X + weight_decay * w); in every muon-normalize-th "
             "step, "
             "from the first, w = w * sqrt(out) / norm(w) before it; the others: as nesterov, biases and "
             "scales "
             "at bias-lr, first and last layer at ends-lr in place of lr (0: lr); /momentum holds v";
  }
  return "";
}

}  // namespace cifar_mpi::optim
