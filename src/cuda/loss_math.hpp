#pragma once

#include <cstdint>

/// Softmax cross-entropy of one sample; runs on the host and on the device.
namespace cifar_mpi::cuda {

struct SampleLoss {
  double loss = 0.0;
  int predicted = 0;  ///< the class with the largest logit, the first of equals
  bool counts = false;
};

/// loss = log Σ_j exp(z_j − m) − (z_label − m), m the largest logit; `write(j, gradient)` receives
/// (softmax(z)_j − [j == label]) · scale. A label that is no class counts for nothing and its gradient is
/// zero.
///
/// `read(j)` gives z_j; `Math` has exp of a float and log of a double. Exponentials are fp32, sums double.
template <class Read, class Write, class Math>
constexpr SampleLoss sample_loss(int classes, int label, double scale, Read read, Write write, Math math) {
  SampleLoss sample;
  float largest = read(0);
  for (int j = 1; j < classes; ++j) {
    const float z = read(j);
    if (!(z > largest)) continue;
    largest = z;
    sample.predicted = j;
  }
  double sum = 0.0;
  for (int j = 0; j < classes; ++j) sum += static_cast<double>(math.exp(read(j) - largest));
  sample.counts = label < classes;
  if (sample.counts) {
    sample.loss = math.log(sum) - (static_cast<double>(read(label)) - static_cast<double>(largest));
  }
  const double inverse = 1.0 / sum;  // a division in double is some thirty instructions
  for (int j = 0; j < classes; ++j) {
    const double share =
        static_cast<double>(math.exp(read(j) - largest)) * inverse - (j == label ? 1.0 : 0.0);
    write(j, sample.counts ? static_cast<float>(share * scale) : 0.0f);
  }
  return sample;
}

}  // namespace cifar_mpi::cuda
