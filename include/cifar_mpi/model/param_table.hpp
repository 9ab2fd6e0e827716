#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cifar_mpi/base/shape.hpp"
#include "cifar_mpi/model/net_spec.hpp"

namespace cifar_mpi::model {

/// trained: has a gradient and is updated. frozen: keeps its initial value. running: changes with the steps, but
/// not by a gradient (statistics).
enum class ParamRole : std::uint8_t { trained, frozen, running };

/// What a parameter is in the formula of its layer.
enum class ParamPart : std::uint8_t { weights, biases };

/// One parameter tensor as TensorFlow knows it; where it lies in memory is the backend's business
/// (engine/layout.hpp).
struct Param {
  std::string name;           ///< "conv1/weights"
  Shape shape;                ///< [k, k, in, out], [in, out] or [out], row major
  std::string dims;           ///< the extents in words: "[height, width, in, out]"
  std::size_t operation = 0;  ///< index in NetSpec::operations
  ParamPart part = ParamPart::weights;
  ParamRole role = ParamRole::trained;
  float stddev = 0.0f;  ///< initial values: truncated normal, or `constant` when stddev is 0
  float constant = 0.0f;
  float weight_decay = 0.0f;
  float rate_factor = 1.0f;      ///< of the learning rate
  std::uint32_t seed_index = 0;  ///< numbers the tensors in forward order; keys the initial values
};

/// All parameters in the order in which the backward pass finishes them (last operation first, weights before
/// biases), and behind these, in the same order, those that are not trained.
using ParamTable = std::vector<Param>;

ParamTable make_param_table(const NetSpec& net);

/// The parameters of one operation as indices of the table: weights, then biases; none where it has none.
std::vector<std::size_t> params_of(const ParamTable& table, std::size_t operation);

/// How many entries from the first on are trained.
std::size_t trained_params(const ParamTable& table);

/// Total number of logical parameters.
std::int64_t param_count(const ParamTable& table);

/// Initial values of one parameter in logical order, a pure function of (seed, parameter, index).
void fill_initial(const Param& param, std::uint64_t seed, std::span<float> values);

}  // namespace cifar_mpi::model
