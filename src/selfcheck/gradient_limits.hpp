#pragma once

#include <vector>

#include "cifar_mpi/model/net_spec.hpp"
#include "cifar_mpi/model/param_table.hpp"

/// How far gradients of two devices may be from each other.
namespace cifar_mpi::selfcheck {

/// By ParamTable index, in logical order; empty of those that are frozen.
using Gradients = std::vector<std::vector<float>>;

/// How far gradient `p` is from what is wanted, relative to its length. Biases add up the terms of which the gradient of
/// the layer's weights is made too, and where these nearly cancel their rounding remains: so the length is at least that
/// gradient's; likewise scales and biases of a BatchNorm. That of its means is at least that of the deviations.
double gradient_distance(const model::ParamTable& params, const Gradients& found, const Gradients& wanted,
                         std::size_t p);

/// What fp32 rounding makes of a step over a batch.
struct RoundingLimits {
  double loss = 0.0;       ///< relative: sums alone
  double gradients = 0.0;  ///< of their length
};

/// A layer adds about eps·sqrt(k) of the size of its result, k the terms of its longest sum; a gradient has passed
/// every layer forward and backward, and errors of random sign add up as the square root of their number. Besides, a
/// rounded value decides a pooling, or a ReLU, when another of the 9 in its window lies within two roundings of it,
/// and then a whole gradient goes elsewhere; in length that is the square root of its share.
RoundingLimits fp32_limits(const model::NetSpec& net, int batch);

}  // namespace cifar_mpi::selfcheck
