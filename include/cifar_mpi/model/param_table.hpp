#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cifar_mpi/model/net_spec.hpp"
#include "cifar_mpi/model/param.hpp"

namespace cifar_mpi::model {

/// All parameters in the order in which the backward pass finishes them (last operation first, weights before
/// biases), then, in the same order, the frozen ones, and last the running ones.
using ParamTable = std::vector<Param>;

ParamTable make_param_table(const NetSpec& net);

/// The parameters of one operation as indices of the table, in the order of Operation::params.
std::vector<std::size_t> params_of(const ParamTable& table, std::size_t operation);

/// The number of trained entries, which come first.
std::size_t trained_params(const ParamTable& table);

/// Groups of trained parameters that an optimizer may give rates of their own. hidden_matrix: weights between the
/// first and the last layer that has weights; ends: weights of these two layers; vector: biases and scales.
enum class RateRole : std::uint8_t { hidden_matrix, ends, vector };
RateRole rate_role(const ParamTable& table, std::size_t p);

/// Total number of logical parameters, running statistics not counted, as papers count.
std::int64_t param_count(const ParamTable& table);

/// Initial values of one parameter in logical order, a pure function of (seed, parameter, index).
void fill_initial(const Param& param, std::uint64_t seed, std::span<float> values);

}  // namespace cifar_mpi::model
