#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cifar_mpi/base/shape.hpp"

namespace cifar_mpi::model {

/// trained: has a gradient and is updated. frozen: keeps its initial value. running: changes with the steps,
/// but not by a gradient (statistics).
enum class ParamRole : std::uint8_t { trained, frozen, running };

/// The role of a parameter in the formula of its layer.
enum class ParamPart : std::uint8_t { weights, biases, scale, mean, variance };

/// One parameter tensor in TensorFlow's shape; engine/layout.hpp has its place in memory.
struct Param {
  std::string name;           ///< "conv1/weights"
  Shape shape;                ///< [k, k, in, out], [in, out], [out] or [channels], row major
  std::string dims;           ///< the extents in words: "[height, width, in, out]"
  std::size_t operation = 0;  ///< index in NetSpec::operations
  ParamPart part = ParamPart::weights;
  ParamRole role = ParamRole::trained;
  float stddev = 0.0f;  ///< initial values: truncated normal, or `constant` when stddev is 0
  float constant = 0.0f;
  float weight_decay = 0.0f;
  float rate_factor = 1.0f;  ///< of the learning rate; of a running one, the share of the newest statistics
  std::uint32_t seed_index = 0;  ///< numbers the tensors in forward order; keys the initial values
};

}  // namespace cifar_mpi::model
