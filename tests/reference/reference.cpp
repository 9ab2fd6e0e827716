#include "reference/reference.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numbers>

namespace cifar_mpi::reference {
namespace {

std::size_t size_of(std::int64_t count) { return static_cast<std::size_t>(count); }

int outputs_of(int n, const ConvShape& s) {
  return s.valid ? (n - s.kernel) / s.stride + 1 : (n + s.stride - 1) / s.stride;
}

/// Calls `visit(in, out, tap)` with the offsets of channel 0 for every output pixel and every tap inside the
/// image.
template <class Visit>
void for_each_tap(const ConvShape& s, Visit visit) {
  const int before = s.valid ? 0 : (s.kernel - 1) / 2;
  const std::int64_t cin = s.in.channels, cout = s.out_channels;
  const int height = outputs_of(s.in.height, s), width = outputs_of(s.in.width, s);
  for (int b = 0; b < s.batch; ++b) {
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x) {
        const std::int64_t out = ((std::int64_t{b} * height + y) * width + x) * cout;
        for (int ky = 0; ky < s.kernel; ++ky) {
          const int iy = y * s.stride + ky - before;
          if (iy < 0 || iy >= s.in.height) continue;
          for (int kx = 0; kx < s.kernel; ++kx) {
            const int ix = x * s.stride + kx - before;
            if (ix < 0 || ix >= s.in.width) continue;
            const std::int64_t in = ((std::int64_t{b} * s.in.height + iy) * s.in.width + ix) * cin;
            visit(in, out, (std::int64_t{ky} * s.kernel + kx) * cin * cout);
          }
        }
      }
    }
  }
}

/// The start of the window of output `i` along an axis of n, and the number of outputs.
struct Axis {
  int n, kernel, stride, outputs, before;
  Axis(int extent, const PoolShape& s)
      : n(extent), kernel(s.kernel), stride(s.stride), outputs((extent + s.stride - 1) / s.stride) {
    if (s.valid) outputs = (extent - kernel) / stride + 1;
    before = std::max((outputs - 1) * stride + kernel - extent, 0) / 2;
  }
  int first(int i) const { return std::max(i * stride - before, 0); }
  int last(int i) const { return std::min(i * stride - before + kernel, n); }  // one past it
};

/// Calls `visit(out, best)` with the offset of each pooled value and of the first maximum of its window.
template <class Visit>
void for_each_maximum(const PoolShape& s, const Array& x, Visit visit) {
  const Axis rows(s.in.height, s), columns(s.in.width, s);
  std::size_t out = 0;
  for (int b = 0; b < s.batch; ++b) {
    for (int oy = 0; oy < rows.outputs; ++oy) {
      for (int ox = 0; ox < columns.outputs; ++ox) {
        for (int c = 0; c < s.in.channels; ++c) {
          const auto at = [&](int iy, int ix) {
            return size_of(((std::int64_t{b} * s.in.height + iy) * s.in.width + ix) * s.in.channels + c);
          };
          std::size_t best = at(rows.first(oy), columns.first(ox));
          for (int iy = rows.first(oy); iy < rows.last(oy); ++iy) {
            for (int ix = columns.first(ox); ix < columns.last(ox); ++ix) {
              if (x[at(iy, ix)] > x[best]) best = at(iy, ix);
            }
          }
          visit(out++, best);
        }
      }
    }
  }
}

std::size_t pooled_count(const PoolShape& s) {
  const Axis rows(s.in.height, s), columns(s.in.width, s);
  return size_of(std::int64_t{s.batch} * rows.outputs * columns.outputs * s.in.channels);
}

/// bias + alpha · Σ x² over the window of channel `c` of one pixel.
double lrn_base(const model::LocalResponseNorm& layer, int channels, const double* pixel, int c) {
  double sum = 0.0;
  for (int j = std::max(c - layer.depth_radius, 0); j <= std::min(c + layer.depth_radius, channels - 1);
       ++j) {
    sum += pixel[j] * pixel[j];
  }
  return static_cast<double>(layer.bias) + static_cast<double>(layer.alpha) * sum;
}

int taken_of(int n, const model::Shortcut& layer) { return (n + layer.stride - 1) / layer.stride; }

/// Calls `visit(in, out)` with the offsets of equal values.
template <class Visit>
void for_each_taken(const model::Shortcut& layer, int batch, const Extent& in, Visit visit) {
  const int height = taken_of(in.height, layer), width = taken_of(in.width, layer);
  for (int b = 0; b < batch; ++b) {
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x) {
        for (int c = 0; c < in.channels; ++c) {
          visit(size_of(((std::int64_t{b} * in.height + y * layer.stride) * in.width + x * layer.stride) *
                            in.channels +
                        c),
                size_of(((std::int64_t{b} * height + y) * width + x) * layer.out_channels + c));
        }
      }
    }
  }
}

/// A linear layer is a convolution with kernel 1 over 1x1 images.
ConvShape as_conv(const LinearShape& s) { return {s.batch, {1, 1, s.inputs}, s.outputs, 1}; }

}  // namespace

Array conv_forward(const ConvShape& s, const Array& x, const Array& weights, const Array& biases) {
  assert(x.size() == size_of(std::int64_t{s.batch} * s.in.count()));
  assert(weights.size() == size_of(std::int64_t{s.kernel} * s.kernel * s.in.channels * s.out_channels));
  const int pixels = s.batch * outputs_of(s.in.height, s) * outputs_of(s.in.width, s);
  Array y(size_of(std::int64_t{pixels} * s.out_channels), 0.0);
  for (std::size_t i = 0; i < y.size() && !biases.empty(); ++i) y[i] = biases[i % biases.size()];
  for_each_tap(s, [&](std::int64_t in, std::int64_t out, std::int64_t tap) {
    const double* w = &weights[size_of(tap)];
    for (int i = 0; i < s.in.channels; ++i) {
      const double value = x[size_of(in + i)];
      for (int o = 0; o < s.out_channels; ++o) y[size_of(out + o)] += value * *w++;
    }
  });
  return y;
}

Array conv_grad_weights(const ConvShape& s, const Array& x, const Array& grad_y) {
  Array grad(size_of(std::int64_t{s.kernel} * s.kernel * s.in.channels * s.out_channels), 0.0);
  for_each_tap(s, [&](std::int64_t in, std::int64_t out, std::int64_t tap) {
    double* g = &grad[size_of(tap)];
    for (int i = 0; i < s.in.channels; ++i) {
      const double value = x[size_of(in + i)];
      for (int o = 0; o < s.out_channels; ++o) *g++ += value * grad_y[size_of(out + o)];
    }
  });
  return grad;
}

Array conv_grad_x(const ConvShape& s, const Array& weights, const Array& grad_y) {
  Array grad(size_of(std::int64_t{s.batch} * s.in.count()), 0.0);
  for_each_tap(s, [&](std::int64_t in, std::int64_t out, std::int64_t tap) {
    const double* w = &weights[size_of(tap)];
    for (int i = 0; i < s.in.channels; ++i) {
      double sum = 0.0;
      for (int o = 0; o < s.out_channels; ++o) sum += *w++ * grad_y[size_of(out + o)];
      grad[size_of(in + i)] += sum;
    }
  });
  return grad;
}

Array pool_forward(const PoolShape& s, const Array& x) {
  assert(x.size() == size_of(std::int64_t{s.batch} * s.in.count()));
  Array y(pooled_count(s));
  for_each_maximum(s, x, [&](std::size_t out, std::size_t best) { y[out] = x[best]; });
  return y;
}

Array pool_grad_x(const PoolShape& s, const Array& x, const Array& grad_y) {
  assert(grad_y.size() == pooled_count(s));
  Array grad(x.size(), 0.0);
  for_each_maximum(s, x, [&](std::size_t out, std::size_t best) { grad[best] += grad_y[out]; });
  return grad;
}

Array lrn_forward(const model::LocalResponseNorm& layer, int channels, const Array& x) {
  Array y(x.size());
  for (std::size_t pixel = 0; pixel < x.size(); pixel += size_of(channels)) {
    for (int c = 0; c < channels; ++c) {
      const std::size_t at = pixel + size_of(c);
      y[at] = x[at] * std::pow(lrn_base(layer, channels, &x[pixel], c), -static_cast<double>(layer.beta));
    }
  }
  return y;
}

Array lrn_grad_x(const model::LocalResponseNorm& layer, int channels, const Array& x, const Array& grad_y) {
  // dy[c]/dx[j] = [c = j]·base[c]^−beta − 2·alpha·beta·x[c]·x[j]·base[c]^(−beta−1) for j in the window of c.
  const double alpha = layer.alpha, beta = layer.beta;
  Array grad(x.size(), 0.0);
  for (std::size_t pixel = 0; pixel < x.size(); pixel += size_of(channels)) {
    for (int c = 0; c < channels; ++c) {
      const std::size_t at = pixel + size_of(c);
      const double base = lrn_base(layer, channels, &x[pixel], c);
      grad[at] += grad_y[at] * std::pow(base, -beta);
      const double factor = 2.0 * alpha * beta * x[at] * grad_y[at] * std::pow(base, -beta - 1.0);
      for (int j = std::max(c - layer.depth_radius, 0); j <= std::min(c + layer.depth_radius, channels - 1);
           ++j) {
        grad[pixel + size_of(j)] -= factor * x[pixel + size_of(j)];
      }
    }
  }
  return grad;
}

Moments moments_of(int channels, const Array& x) {
  const auto c = size_of(channels);
  const auto values = static_cast<double>(x.size() / c);
  Moments moments{Array(c, 0.0), Array(c, 0.0)};
  for (std::size_t i = 0; i < x.size(); ++i) moments.mean[i % c] += x[i] / values;
  for (std::size_t i = 0; i < x.size(); ++i) {
    moments.variance[i % c] += (x[i] - moments.mean[i % c]) * (x[i] - moments.mean[i % c]) / values;
  }
  return moments;
}

Array batch_norm_forward(const model::BatchNorm& layer, const Array& x, const Array& scale,
                         const Array& biases, const Moments& moments) {
  Array y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t c = i % scale.size();
    const double deviation = std::sqrt(moments.variance[c] + static_cast<double>(layer.epsilon));
    y[i] = scale[c] * (x[i] - moments.mean[c]) / deviation + biases[c];
  }
  return y;
}

BatchNormGrads batch_norm_backward(const model::BatchNorm& layer, const Array& x, const Array& scale,
                                   const Array& grad_y) {
  const std::size_t channels = scale.size();
  const Moments moments = moments_of(static_cast<int>(channels), x);
  const Array normalized = batch_norm_forward(layer, x, Array(channels, 1.0), Array(channels, 0.0), moments);
  BatchNormGrads grads{Array(x.size()), Array(channels, 0.0), Array(channels, 0.0)};
  for (std::size_t i = 0; i < x.size(); ++i) {
    grads.scale[i % channels] += grad_y[i] * normalized[i];
    grads.biases[i % channels] += grad_y[i];
  }
  const auto values = static_cast<double>(x.size() / channels);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t c = i % channels;
    const double deviation = std::sqrt(moments.variance[c] + static_cast<double>(layer.epsilon));
    grads.x[i] =
        scale[c] / deviation * (grad_y[i] - (grads.biases[c] + normalized[i] * grads.scale[c]) / values);
  }
  return grads;
}

Array global_avg_pool_forward(int batch, const Extent& in, const Array& x) {
  const std::size_t channels = size_of(in.channels), image = size_of(in.count());
  Array y(size_of(batch) * channels, 0.0);
  for (std::size_t i = 0; i < x.size(); ++i) {
    y[i / image * channels + i % channels] += x[i] / (1.0 * in.height * in.width);
  }
  return y;
}

Array global_avg_pool_grad_x(int batch, const Extent& in, const Array& grad_y) {
  const std::size_t channels = size_of(in.channels), image = size_of(in.count());
  Array grad(size_of(batch) * image);
  for (std::size_t i = 0; i < grad.size(); ++i) {
    grad[i] = grad_y[i / image * channels + i % channels] / (1.0 * in.height * in.width);
  }
  return grad;
}

Array shortcut_forward(const model::Shortcut& layer, int batch, const Extent& in, const Array& x) {
  const int height = taken_of(in.height, layer), width = taken_of(in.width, layer);
  Array y(size_of(std::int64_t{batch} * height * width * layer.out_channels), 0.0);
  for_each_taken(layer, batch, in, [&](std::size_t from, std::size_t to) { y[to] = x[from]; });
  return y;
}

Array shortcut_grad_x(const model::Shortcut& layer, int batch, const Extent& in, const Array& grad_y) {
  Array grad(size_of(std::int64_t{batch} * in.count()), 0.0);
  for_each_taken(layer, batch, in, [&](std::size_t from, std::size_t to) { grad[from] = grad_y[to]; });
  return grad;
}

Array relu_forward(const Array& x) {
  Array y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = std::max(x[i], 0.0);
  return y;
}

Array relu_grad_x(const Array& y, const Array& grad_y) {
  Array grad(y.size());
  for (std::size_t i = 0; i < y.size(); ++i) grad[i] = y[i] > 0.0 ? grad_y[i] : 0.0;
  return grad;
}

Array pointwise_forward(const model::Pointwise& layer, const Array& x) {
  Array y = x;
  for (double& value : y) {
    switch (layer.kind) {
      case model::PointwiseKind::silu:
        value /= 1.0 + std::exp(-value);
        break;
      case model::PointwiseKind::gelu:
        value *= 0.5 * std::erfc(-value * std::sqrt(0.5));
        break;
      case model::PointwiseKind::scale:
        value *= static_cast<double>(layer.factor);
        break;
    }
  }
  return y;
}

Array pointwise_grad_x(const model::Pointwise& layer, const Array& x, const Array& grad_y) {
  Array grad = grad_y;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double sigmoid = 1.0 / (1.0 + std::exp(-x[i]));
    switch (layer.kind) {
      case model::PointwiseKind::silu:
        grad[i] *= sigmoid * (1.0 + x[i] * (1.0 - sigmoid));
        break;
      case model::PointwiseKind::gelu:
        grad[i] *= 0.5 * std::erfc(-x[i] * std::sqrt(0.5)) +
                   x[i] * std::exp(-0.5 * x[i] * x[i]) / std::sqrt(2.0 * std::numbers::pi);
        break;
      case model::PointwiseKind::scale:
        grad[i] *= static_cast<double>(layer.factor);
        break;
    }
  }
  return grad;
}

Array linear_forward(const LinearShape& s, const Array& x, const Array& weights, const Array& biases) {
  return conv_forward(as_conv(s), x, weights, biases);
}

Array linear_grad_weights(const LinearShape& s, const Array& x, const Array& grad_y) {
  return conv_grad_weights(as_conv(s), x, grad_y);
}

Array linear_grad_x(const LinearShape& s, const Array& weights, const Array& grad_y) {
  return conv_grad_x(as_conv(s), weights, grad_y);
}

Array grad_biases(int channels, const Array& grad_y) {
  Array grad(size_of(channels), 0.0);
  for (std::size_t i = 0; i < grad_y.size(); ++i) grad[i % size_of(channels)] += grad_y[i];
  return grad;
}

Loss softmax_cross_entropy(int classes, const Array& logits, std::span<const std::uint8_t> labels,
                           double global_batch, double smoothing) {
  assert(logits.size() == labels.size() * size_of(classes));
  Loss loss;
  loss.probabilities.resize(logits.size());
  loss.grad_logits.assign(logits.size(), 0.0);
  for (std::size_t sample = 0; sample < labels.size(); ++sample) {
    const std::size_t row = sample * size_of(classes);
    const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(row);
    const auto best = std::max_element(begin, begin + classes);
    double total = 0.0;
    for (int c = 0; c < classes; ++c) total += std::exp(begin[c] - *best);
    for (int c = 0; c < classes; ++c)
      loss.probabilities[row + size_of(c)] = std::exp(begin[c] - *best) / total;
    const int label = labels[sample];
    if (label == 255) continue;
    assert(label < classes);
    loss.samples += 1.0;
    loss.correct += best - begin == label ? 1.0 : 0.0;
    for (int c = 0; c < classes; ++c) {
      const double wanted = (c == label ? 1.0 - smoothing : 0.0) + smoothing / classes;
      if (wanted > 0.0) loss.sum += wanted * (std::log(total) + *best - begin[c]);
      loss.grad_logits[row + size_of(c)] = (loss.probabilities[row + size_of(c)] - wanted) / global_batch;
    }
  }
  return loss;
}

}  // namespace cifar_mpi::reference
