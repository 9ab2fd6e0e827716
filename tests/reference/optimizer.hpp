#pragma once

#include <span>
#include <vector>

#include "cifar_mpi/optim/step_math.hpp"

/// Optimizers without state: sums over all past gradients, in double.
namespace cifar_mpi::reference {

/// The values of one weight: before the first step, and after each. One gradient and one rate for each step.
///
/// Momentum is Σ_i m^(t − i)·g_i with g_i = gradient + decay · w_i; adamw's moments are Σ_i (1 − β)·β^(t − i)·g_i
/// (g_i² in the second), divided by 1 − β^(t + 1). Only the weight is carried from step to step.
std::vector<double> trajectory(const optim::OptimizerSpec& optimizer, double weight, double decay,
                               std::span<const double> gradients, std::span<const double> rates);

/// Σ_i factor · ratio^(t − i)·values_i over the values so far, the last one being of step t.
double faded_sum(double factor, double ratio, std::span<const double> values);

/// The move of a matrix with muon, before the rate: `direction` [rest, out], the Nesterov direction, as one with `out` rows.
std::vector<double> muon_move(std::span<const double> direction, std::size_t rest, std::size_t out);

}  // namespace cifar_mpi::reference
