#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cifar_mpi/base/shape.hpp"
#include "cifar_mpi/model/net_spec.hpp"

namespace cifar_mpi::model {

/// One parameter tensor as TensorFlow knows it; where it lies in memory is the backend's business
/// (engine/layout.hpp).
struct Param {
  std::string name;       ///< "conv1/weights"
  Shape shape;            ///< [k, k, in, out], [in, out] or [out], row major
  std::string dims;       ///< the extents in words: "[height, width, in, out]"
  std::size_t layer = 0;  ///< index in NetSpec::layers
  float stddev = 0.0f;    ///< initial values: truncated normal, or `constant` when stddev is 0
  float constant = 0.0f;
  float weight_decay = 0.0f;
  std::uint32_t seed_index = 0;  ///< numbers the tensors in forward order; keys the initial values
};

/// All parameters in the order in which the backward pass finishes them (last layer first, weights before
/// biases).
using ParamTable = std::vector<Param>;

ParamTable make_param_table(const NetSpec& net);

/// Total number of logical parameters.
std::int64_t param_count(const ParamTable& table);

/// Initial values of one parameter in logical order, a pure function of (seed, parameter, index).
void fill_initial(const Param& param, std::uint64_t seed, std::span<float> values);

}  // namespace cifar_mpi::model
