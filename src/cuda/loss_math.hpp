#pragma once

#include <cstdint>

/// Softmax cross-entropy of one sample; runs on the host and on the device.
namespace cifar_mpi::cuda {

struct SampleLoss {
  double loss = 0.0;
  int predicted = 0;  ///< the class with the largest logit, the first of equals
  bool counts = false;
};

/// What the gradient is multiplied by, and how much of the target is spread evenly over the classes.
struct LossRule {
  double scale = 0.0;
  double smoothing = 0.0;
};

/// The cross-entropy of the target q_j = (1 − smoothing)·[j == label] + smoothing / classes,
///   loss = log Σ_j exp(z_j − m) − Σ_j q_j·(z_j − m), m the largest logit;
/// `write(j, gradient)` receives (softmax(z)_j − q_j) · scale. A label that is no class counts for nothing and
/// its gradient is zero.
///
/// `read(j)` gives z_j; `Math` has exp of a float and log of a double. Exponentials are fp32, sums double.
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
  const double spread = rule.smoothing / classes;
  double sum = 0.0, spread_sum = 0.0;
  for (int j = 0; j < classes; ++j) {
    sum += static_cast<double>(math.exp(read(j) - largest));
    // Where nothing is spread a logit of −∞ is nobody's target.
    if (spread > 0.0) spread_sum += static_cast<double>(read(j)) - static_cast<double>(largest);
  }
  sample.counts = label < classes;
  if (sample.counts) {
    const double behind = static_cast<double>(read(label)) - static_cast<double>(largest);
    sample.loss = math.log(sum) - (1.0 - rule.smoothing) * behind - spread * spread_sum;
  }
  const double inverse = 1.0 / sum;  // a division in double is some thirty instructions
  const double hit = 1.0 - rule.smoothing + spread;
  for (int j = 0; j < classes; ++j) {
    const double share =
        static_cast<double>(math.exp(read(j) - largest)) * inverse - (j == label ? hit : spread);
    write(j, sample.counts ? static_cast<float>(share * rule.scale) : 0.0f);
  }
  return sample;
}

}  // namespace cifar_mpi::cuda
