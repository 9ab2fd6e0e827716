#include "reference/optimizer.hpp"

#include <cmath>

namespace cifar_mpi::reference {

double faded_sum(double factor, double ratio, std::span<const double> values) {
  double sum = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    sum += factor * std::pow(ratio, static_cast<double>(values.size() - 1 - i)) * values[i];
  }
  return sum;
}

std::vector<double> trajectory(const optim::OptimizerSpec& optimizer, double weight, double decay,
                               std::span<const double> gradients, std::span<const double> rates) {
  std::vector<double> weights{weight}, slopes, squares;
  for (std::size_t t = 0; t < gradients.size(); ++t) {
    const double w = weights.back(), n = static_cast<double>(t + 1);
    const bool adamw = optimizer.kind == optim::OptimizerKind::adamw;
    slopes.push_back(adamw ? gradients[t] : gradients[t] + decay * w);
    squares.push_back(gradients[t] * gradients[t]);
    const double gathered = faded_sum(1.0, optimizer.momentum, slopes);
    double move = 0.0;
    switch (optimizer.kind) {
      case optim::OptimizerKind::sgd:
        move = slopes.back();
        break;
      case optim::OptimizerKind::momentum:
        move = gathered;
        break;
      case optim::OptimizerKind::nesterov:
        move = slopes.back() + optimizer.momentum * gathered;
        break;
      case optim::OptimizerKind::adamw: {
        const double b1 = optimizer.beta1, b2 = optimizer.beta2;
        const double mean = faded_sum(1.0 - b1, b1, slopes) / (1.0 - std::pow(b1, n));
        const double square = faded_sum(1.0 - b2, b2, squares) / (1.0 - std::pow(b2, n));
        move = mean / (std::sqrt(square) + optimizer.eps) + decay * w;
        break;
      }
    }
    weights.push_back(w - rates[t] * move);
  }
  return weights;
}

}  // namespace cifar_mpi::reference
