#include "selfcheck/gradient_limits.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace cifar_mpi::selfcheck {
namespace {

double length(const std::vector<float>& values) {
  double square = 0.0;
  for (const float value : values) square += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(square);
}

}  // namespace

double gradient_distance(const model::ParamTable& params, const Gradients& found, const Gradients& wanted,
                         std::size_t p) {
  double square = 0.0;
  for (std::size_t i = 0; i < wanted[p].size(); ++i) {
    const double difference = static_cast<double>(found[p][i]) - static_cast<double>(wanted[p][i]);
    square += difference * difference;
  }
  double scale = length(wanted[p]);
  const model::ParamPart part = params[p].part;
  for (const std::size_t own : model::params_of(params, params[p].operation)) {
    const bool cancels = part == model::ParamPart::biases || part == model::ParamPart::scale;
    if (cancels && params[own].role == model::ParamRole::trained)
      scale = std::max(scale, length(wanted[own]));
    if (part == model::ParamPart::mean && params[own].part == model::ParamPart::variance) {
      scale = std::max(scale, std::sqrt(std::accumulate(wanted[own].begin(), wanted[own].end(), 0.0)));
    }
  }
  return std::sqrt(square) / std::max(scale, 1e-300);
}

RoundingLimits fp32_limits(const model::NetSpec& net, int batch) {
  constexpr double kEps = 0x1.0p-24;
  double forward = 1.0, backward = 1.0;
  for (std::size_t i = 0; i < net.operations.size(); ++i) {
    const Extent in = net.input_of(i), out = net.output_of(i);
    const double places = 1.0 * batch * out.height * out.width;
    if (const auto* const conv = std::get_if<model::Conv2d>(&net.operations[i].layer)) {
      forward = std::max(forward, 1.0 * conv->kernel * conv->kernel * in.channels);
      backward = std::max(backward, places);
    } else if (std::holds_alternative<model::Linear>(net.operations[i].layer)) {
      forward = std::max(forward, 1.0 * in.count());
      backward = std::max(backward, 1.0 * batch);
    } else if (std::holds_alternative<model::GlobalAvgPool>(net.operations[i].layer)) {
      forward = std::max(forward, 1.0 * in.height * in.width);
    } else if (std::holds_alternative<model::BatchNorm>(net.operations[i].layer)) {
      backward = std::max(backward, places);
    }
  }
  const double passes = std::sqrt(2.0 * static_cast<double>(net.operations.size()));
  const double value = kEps * std::sqrt(forward);
  RoundingLimits limits;
  limits.loss = passes * value;
  limits.gradients = passes * kEps * std::sqrt(std::max(forward, backward)) + std::sqrt(9.0 * 2.0 * value);
  return limits;
}

}  // namespace cifar_mpi::selfcheck
