#include <algorithm>
#include <cmath>

#include "reference/reference.hpp"

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
      case optim::OptimizerKind::muon:
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

namespace {

using Matrix = std::vector<std::vector<double>>;

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c(a.size(), std::vector<double>(b.front().size()));
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t k = 0; k < b.size(); ++k) {
      for (std::size_t j = 0; j < b[k].size(); ++j) c[i][j] += a[i][k] * b[k][j];
    }
  }
  return c;
}

Matrix transposed(const Matrix& a) {
  Matrix t(a.front().size(), std::vector<double>(a.size()));
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < a[i].size(); ++j) t[j][i] = a[i][j];
  }
  return t;
}

}  // namespace

std::vector<double> muon_move(std::span<const double> direction, std::size_t rest, std::size_t out) {
  double squares = 0.0;
  for (const double v : direction) squares += v * v;
  Matrix x(out, std::vector<double>(rest));
  for (std::size_t o = 0; o < out; ++o) {
    for (std::size_t r = 0; r < rest; ++r) x[o][r] = direction[r * out + o] / (std::sqrt(squares) + 1e-7);
  }
  for (int i = 0; i < 3; ++i) {
    const Matrix gram = product(x, transposed(x)), first = product(gram, x), second = product(gram, first);
    for (std::size_t o = 0; o < out; ++o) {
      for (std::size_t r = 0; r < rest; ++r)
        x[o][r] = 3.4445 * x[o][r] - 4.7750 * first[o][r] + 2.0315 * second[o][r];
    }
  }
  const double ratio = static_cast<double>(out) / static_cast<double>(rest);
  std::vector<double> move(direction.size());
  for (std::size_t o = 0; o < out; ++o) {
    for (std::size_t r = 0; r < rest; ++r) move[r * out + o] = std::sqrt(std::max(1.0, ratio)) * x[o][r];
  }
  return move;
}

}  // namespace cifar_mpi::reference
