#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cifar_mpi/base/shape.hpp"

namespace cifar_mpi::model {

/// trained: has a gradient and is updated. frozen: keeps its initial value. running: changes with the steps,
/// but not by a gradient (statistics).
enum class ParamRole : std::uint8_t { trained, frozen, running };

/// Initial values. normal: a truncated normal distribution of Param::stddev, or Param::constant if that is 0. identity
/// and whitening: of filters, see Filters.
enum class ParamInit : std::uint8_t { normal, identity, whitening };

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
  ParamInit init = ParamInit::normal;
  float stddev = 0.0f;
  float constant = 0.0f;
  float weight_decay = 0.0f;
  float rate_factor = 1.0f;  ///< of the learning rate; of a running one, the share of the newest statistics
  std::uint64_t steps = 0;   ///< trained in the first so many steps of a run; 0: in all
  std::uint32_t seed_index = 0;  ///< numbers the tensors in forward order; keys the initial values

  /// Whether it trains in the step after `done`.
  bool trains(std::uint64_t done = 0) const {
    return role == ParamRole::trained && (steps == 0 || done < steps);
  }
};

}  // namespace cifar_mpi::model
