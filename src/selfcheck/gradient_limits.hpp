#pragma once

#include <vector>

#include "cifar_mpi/model/net_spec.hpp"
#include "cifar_mpi/model/param_table.hpp"

/// Largest difference allowed between the gradients of two devices.
namespace cifar_mpi::selfcheck {

/// By ParamTable index, in logical order; empty of those that are frozen.
using Gradients = std::vector<std::vector<float>>;

/// The error of gradient `p`, relative to its length. The gradient of a layer's biases sums the same terms as
/// that of its weights; where these nearly cancel, their rounding remains, so the length is at least that of
/// the weights' gradient. The same holds for scales and biases of a BatchNorm. The length for its means is at
/// least that for its deviations.
double gradient_distance(const model::ParamTable& params, const Gradients& found, const Gradients& wanted,
                         std::size_t p);

/// The error of a step over a batch that fp32 rounding allows.
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
