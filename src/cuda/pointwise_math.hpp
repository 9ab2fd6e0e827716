#pragma once

#include "cifar_mpi/model/layer.hpp"

/// Functions of single values and their derivatives; run on the host and on the device. `Math` has exp and erfc.
namespace cifar_mpi::cuda {

/// f(x).
template <class Math>
constexpr float pointwise_value(const model::Pointwise& layer, float x, Math math) {
  if (layer.kind == model::PointwiseKind::silu) return x / (1.0f + math.exp(-x));
  if (layer.kind == model::PointwiseKind::gelu) return 0.5f * x * math.erfc(-0.70710678f * x);
  return layer.factor * x;
}

/// f'(x).
template <class Math>
constexpr float pointwise_slope(const model::Pointwise& layer, float x, Math math) {
  if (layer.kind == model::PointwiseKind::silu) {
    const float sigmoid = 1.0f / (1.0f + math.exp(-x));
    return sigmoid * (1.0f + x * (1.0f - sigmoid));
  }
  if (layer.kind == model::PointwiseKind::gelu) {
    constexpr float kDensity = 0.39894228f;  // 1/√(2π)
    return 0.5f * math.erfc(-0.70710678f * x) + kDensity * x * math.exp(-0.5f * x * x);
  }
  return layer.factor;
}

}  // namespace cifar_mpi::cuda
