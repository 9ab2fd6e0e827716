#pragma once

#include <cstdint>

/// Batch normalization of one channel; runs on the host and on the device.
namespace cifar_mpi::cuda {

/// The mean of `count` values, and the sum of their squared distances from it.
struct Moments {
  float count = 0.0f;
  float mean = 0.0f;
  float squares = 0.0f;

  /// The biased variance; never negative, NaN stays NaN.
  constexpr float variance() const {
    const float biased = squares / count;
    return biased < 0.0f ? 0.0f : biased;
  }
};

/// Sums over values, or over the moments of their parts, relative to `around`. If that is one of the values,
/// or the mean of one part, a mean much larger than the deviation loses no digits (T. F. Chan, G. H. Golub,
/// R. J. LeVeque, "Algorithms for computing the sample variance", The American Statistician 37(3), 1983).
struct MomentSums {
  float sum = 0.0f;
  float squares = 0.0f;
};
constexpr MomentSums seen_from(float around, const Moments& part) {
  const float shift = part.mean - around;
  return {part.count * shift, part.squares + part.count * shift * shift};
}
/// The moments of all `count` values from the sums over their parts.
constexpr Moments moments_of(float count, float around, const MomentSums& sums) {
  const float shift = sums.sum / count;
  return {count, around + shift, sums.squares - sums.sum * shift};
}

/// 1/√(variance + epsilon); `root_of(x)` returns √x.
template <class Root>
constexpr float rstd_of(float variance, float epsilon, Root root_of) {
  return 1.0f / root_of(variance + epsilon);
}

/// y = (x − mean) · slope + bias, slope = scale · rstd, and max(y, 0) if a ReLU follows; NaN stays NaN.
struct ChannelMap {
  float mean = 0.0f;
  float slope = 0.0f;
  float bias = 0.0f;

  constexpr float operator()(float x) const { return (x - mean) * slope + bias; }
  constexpr float operator()(float x, bool relu) const {
    const float y = (*this)(x);
    return relu && y < 0.0f ? 0.0f : y;
  }
  /// The gradient of y after the ReLU's mask; the sign of y is recomputed.
  constexpr float masked(float x, float grad_y, bool relu) const {
    return relu && !((*this)(x) > 0.0f) ? 0.0f : grad_y;
  }
};

/// With g the masked gradient and n = count: grad_biases = Σ g, grad_scale = rstd · Σ g·(x − mean), and
///   grad_x = slope · (g − Σ g / n − (x − mean) · rstd² · Σ g·(x − mean) / n)
struct GradSums {
  float grad = 0.0f;
  float product = 0.0f;  ///< of g and x − mean
};
/// The same divided by n, the product times rstd².
constexpr GradSums grad_means(const GradSums& sums, float count, float rstd) {
  return {sums.grad / count, rstd * rstd * sums.product / count};
}
constexpr float batch_norm_grad(const ChannelMap& map, const GradSums& means, float x, float g) {
  return map.slope * (g - means.grad - (x - map.mean) * means.product);
}

}  // namespace cifar_mpi::cuda
