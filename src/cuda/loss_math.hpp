#pragma once

#include <cstdint>

/// Softmax cross-entropy of one sample; runs on the host and on the device.
namespace cifar_mpi::cuda {

struct SampleLoss {
  float loss = 0.0f;
  int predicted = 0;  ///< the class with the largest logit, the first of equals
  bool counts = false;
};

/// The factor of the gradient, and the share of the target that is spread evenly over the classes.
struct LossRule {
  double scale = 0.0;
  double smoothing = 0.0;
};

/// The cross-entropy of the target q_j = (1 − smoothing)·[j == label] + smoothing / classes,
///   loss = log(1 + r) − Σ_j q_j·(z_j − m), m the largest logit, r = Σ exp(z_j − m) over the other classes;
/// `write(j, gradient)` receives (softmax(z)_j − q_j) · scale. A label that is no class counts for nothing and
/// its gradient is zero.
///
/// All in fp32, in forms that lose no digits where a prediction is sure: of the loss only terms of one sign are
/// added, and the largest class has the probability 1 − r/(1 + r). With u = 2^-24 and d the largest distance
/// |z_j − m|, an exponential is off by at most (d + 4)·u of itself (the rounding of z_j − m, 2 ulp of exp), r by
/// (classes − 2)·u more, log1p by 2·u and the last sums by 3·u: the loss by (d + classes + 7)·u at most. Roundings
/// that are independent of each other give about √classes in place of classes.
///
/// `read(j)` gives z_j; `Math` has exp and log1p of a float.
template <class Read, class Write, class Math>
constexpr SampleLoss sample_loss(int classes, int label, const LossRule& rule, Read read, Write write,
                                 Math math) {
  SampleLoss sample;
  float largest = read(0);
  for (int j = 1; j < classes; ++j) {
    const float z = read(j);
    if (!(z > largest)) continue;
    largest = z;
    sample.predicted = j;
  }
  const auto smoothing = static_cast<float>(rule.smoothing), scale = static_cast<float>(rule.scale);
  const float spread = smoothing / static_cast<float>(classes);
  float rest = 0.0f, spread_sum = 0.0f;
  for (int j = 0; j < classes; ++j) {
    if (j != sample.predicted) rest += math.exp(read(j) - largest);
    // Skipped without smoothing, because 0 · (−∞) is NaN.
    if (spread > 0.0f) spread_sum += largest - read(j);
  }
  sample.counts = label < classes;
  if (sample.counts) {
    sample.loss = math.log1p(rest) + (1.0f - smoothing) * (largest - read(label)) + spread * spread_sum;
  }
  const float inverse = 1.0f / (1.0f + rest);
  for (int j = 0; j < classes; ++j) {
    const float own = j == label ? 1.0f - smoothing : 0.0f;
    const float share = j == sample.predicted ? 1.0f - own - spread - rest * inverse
                                              : math.exp(read(j) - largest) * inverse - own - spread;
    write(j, sample.counts ? share * scale : 0.0f);
  }
  return sample;
}

}  // namespace cifar_mpi::cuda
