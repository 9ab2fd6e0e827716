#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cifar_mpi/optim/step_math.hpp"

/// Optimizers as a user chooses them; step_math.hpp has their formulas.
namespace cifar_mpi::optim {

/// The numbers that an optimizer has, by the names of their options without dashes.
std::vector<std::pair<std::string, double>> numbers_of(const OptimizerSpec& spec);

/// "adamw (beta1 0.9, beta2 0.999, eps 1e-08)"
std::string describe(const OptimizerSpec& spec);

/// The formula in the names of the checkpoint file, for people who read one.
std::string_view formula(OptimizerKind kind);

}  // namespace cifar_mpi::optim
