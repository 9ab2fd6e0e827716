#pragma once

#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "cuda/host_math.hpp"
#include "cuda/loss_math.hpp"
#include "cuda/planner.hpp"

/// The stages of a planned network done on the host, by the formulas that the kernels take, in the order of
/// the GPU's tasks: shows that plan, index arithmetic and formulas together give the gradients of the
/// reference.
namespace cifar_mpi::cuda::testing {

using reference::Array;

class HostNetwork {
 public:
  HostNetwork(const model::NetSpec& net, const model::ParamTable& table, int batch)
      : plan_(plan_network({&net, &table, batch, engine::Precision::fp32})) {}

  const NetPlan& plan() const { return plan_; }

  /// Gradients by ParamTable index as they lie in memory, conv weights with their zero rows.
  reference::Params run(const Array& x, const reference::Params& logical,
                        std::span<const std::uint8_t> labels, double global_batch) {
    params_.clear();
    for (std::size_t p = 0; p < logical.size(); ++p) {
      Array physical = logical[p];
      physical.resize(plan_.layout.entries[p].floats, 0.0);
      params_.push_back(std::move(physical));
    }
    grads_.assign(params_.size(), {});
    values_.assign(1, x);
    taps_.assign(plan_.stages.size(), {});
    between_.assign(plan_.stages.size(), {});
    for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
      values_.push_back(std::visit([&](const auto& work) { return forward(s, work); }, plan_.stages[s].work));
    }
    Array grad = grad_logits(labels, global_batch);
    for (std::size_t s = plan_.stages.size(); s-- > 0;) {
      if (!plan_.edges[s + 1].wants_grad) break;
      grad = std::visit([&](const auto& work) { return backward(s, work, std::move(grad)); },
                        plan_.stages[s].work);
    }
    return std::move(grads_);
  }

  double loss_sum = 0.0;

 private:
  static Array patches(const PatchShape& shape, const Array& image) {
    const PatchPlace place(shape);
    Array result;
    for (int b = 0; b < shape.batch; ++b) {
      for (int i = 0; i < place.patch_units(); ++i) {
        const int source = place.source(i);
        result.push_back(source < 0 ? 0.0
                                    : image[static_cast<std::size_t>(b * place.image_units() + source)]);
      }
    }
    return result;
  }

  Array forward(std::size_t s, const Affine& affine) const {
    const Array& x = values_[s];
    const Array rows = affine.is_conv() ? patches(affine.forward_patches(plan_.batch), x) : x;
    const reference::LinearShape shape{static_cast<int>(affine.rows(plan_.batch)), affine.row,
                                       affine.outputs};
    Array weights = params_[affine.weights], biases = params_[affine.biases];
    weights.resize(static_cast<std::size_t>(affine.row * affine.outputs));
    biases.resize(static_cast<std::size_t>(affine.outputs));
    Array y = reference::linear_forward(shape, rows, weights, biases);
    return affine.relu ? reference::relu_forward(y) : y;
  }

  Array forward(std::size_t s, const Pool& pool) { return pooled(s, pool, values_[s]); }
  Array forward(std::size_t s, const Norm& norm) const { return normalized(s, norm, values_[s]); }
  Array forward(std::size_t s, const PoolNorm& both) {
    between_[s] = pooled(s, both.pool, values_[s]);
    return normalized(s, both.norm, between_[s]);
  }
  Array forward(std::size_t s, const NormPool& both) {
    return pooled(s, both.pool, normalized(s, both.norm, values_[s]));
  }

  Array pooled(std::size_t s, const Pool& pool, const Array& source) {
    const PoolPlace& p = pool.place;
    Array y;
    for (int b = 0; b < p.batch; ++b) {
      for (int oy = 0; oy < p.out_height; ++oy) {
        for (int ox = 0; ox < p.out_width; ++ox) {
          for (int c = 0; c < p.channels; ++c) {
            const PoolChoice choice = pool_choose(p, oy, ox, pool.relu, [&](int row, int column) {
              return static_cast<float>(
                  source[index(p.in_height, p.in_width, p.channels, b, row, column, c)]);
            });
            y.push_back(static_cast<double>(choice.value));
            taps_[s].push_back(choice.tap);
          }
        }
      }
    }
    return y;
  }

  Array normalized(std::size_t s, const Norm& norm, const Array& source) const {
    Array y;
    for (std::size_t i = 0; i < source.size(); ++i) {
      const float base = base_of(s, norm, source, i);
      y.push_back(source[i] * static_cast<double>(norm_scale(norm.rule, base, HostMath{})));
    }
    return y;
  }

  Array forward(std::size_t s, const Rectify&) const { return reference::relu_forward(values_[s]); }

  Array backward(std::size_t s, const Affine& affine, Array grad) {
    if (affine.masks) grad = reference::relu_grad_x(values_[s + 1], grad);
    const int rows = static_cast<int>(affine.rows(plan_.batch));
    grads_[affine.biases] = reference::grad_biases(affine.outputs, grad);
    const Array x = affine.is_conv() ? patches(affine.forward_patches(plan_.batch), values_[s]) : values_[s];
    grads_[affine.weights] = reference::linear_grad_weights({rows, affine.row, affine.outputs}, x, grad);
    if (!affine.wants_grad_x) return {};
    if (!affine.is_conv()) {
      return reference::linear_grad_x({rows, affine.inner, affine.outputs}, params_[affine.weights], grad);
    }
    const PatchShape back = affine.backward_patches(plan_.batch);
    Array turned(static_cast<std::size_t>(back.row * affine.in.channels), 0.0);
    for (int i = 0; i < back.inner() * affine.in.channels; ++i) {
      turned[static_cast<std::size_t>(i)] = params_[affine.weights][static_cast<std::size_t>(
          turned_source(affine.kernel, affine.in.channels, affine.outputs, i))];
    }
    return reference::linear_forward({rows, back.row, affine.in.channels}, patches(back, grad), turned,
                                     Array(static_cast<std::size_t>(affine.in.channels), 0.0));
  }

  Array backward(std::size_t s, const Pool& pool, const Array& grad) const {
    const PoolPlace& p = pool.place;
    Array result;
    for (int b = 0; b < p.batch; ++b) {
      for (int y = 0; y < p.in_height; ++y) {
        for (int x = 0; x < p.in_width; ++x) {
          for (int c = 0; c < p.channels; ++c) {
            const auto at = [&](int row, int column) {
              return index(p.out_height, p.out_width, p.channels, b, row, column, c);
            };
            result.push_back(static_cast<double>(pool_gather(
                p, y, x, [&](int row, int column) { return static_cast<int>(taps_[s][at(row, column)]); },
                [&](int row, int column) { return static_cast<float>(grad[at(row, column)]); })));
          }
        }
      }
    }
    return result;
  }

  Array backward(std::size_t s, const Norm& norm, const Array& grad) const {
    return norm_backward(s, norm, values_[s], grad);
  }
  Array backward(std::size_t s, const PoolNorm& both, const Array& grad) const {
    return backward(s, both.pool, norm_backward(s, both.norm, between_[s], grad));
  }
  Array backward(std::size_t s, const NormPool& both, const Array& grad) const {
    return backward(s, both.norm, backward(s, both.pool, grad));
  }

  Array norm_backward(std::size_t s, const Norm& norm, const Array& source, const Array& grad) const {
    const int channels = plan_.edges[s].extent.channels;
    Array shares, directs, result;
    for (std::size_t i = 0; i < grad.size(); ++i) {
      const float base = base_of(s, norm, source, i);
      directs.push_back(grad[i] * static_cast<double>(norm_scale(norm.rule, base, HostMath{})));
      shares.push_back(directs[i] * source[i] / static_cast<double>(base));
    }
    for (std::size_t i = 0; i < grad.size(); ++i) {
      const int channel = static_cast<int>(i % static_cast<std::size_t>(channels));
      const std::size_t pixel = i - static_cast<std::size_t>(channel);
      const auto x = static_cast<float>(source[i]);
      const float g = norm_gradient(
          norm.rule, channels, channel, x, static_cast<float>(directs[i]),
          [&](int c) { return static_cast<float>(shares[pixel + static_cast<std::size_t>(c)]); });
      result.push_back(norm.relu && !(x > 0.0f) ? 0.0 : static_cast<double>(g));
    }
    return result;
  }

  Array backward(std::size_t s, const Rectify& rectify, Array grad) const {
    return rectify.masks ? reference::relu_grad_x(values_[s + 1], grad) : grad;
  }

  Array grad_logits(std::span<const std::uint8_t> labels, double global_batch) {
    Array grad(values_.back().size());
    loss_sum = 0.0;
    for (std::size_t i = 0; i < labels.size(); ++i) {
      const std::size_t row = i * static_cast<std::size_t>(plan_.classes);
      const SampleLoss sample = sample_loss(
          plan_.classes, labels[i], 1.0 / global_batch,
          [&](int j) { return static_cast<float>(values_.back()[row + static_cast<std::size_t>(j)]); },
          [&](int j, float g) { grad[row + static_cast<std::size_t>(j)] = static_cast<double>(g); },
          HostMath{});
      loss_sum += sample.loss;
    }
    return grad;
  }

  float base_of(std::size_t s, const Norm& norm, const Array& source, std::size_t i) const {
    const int channels = plan_.edges[s].extent.channels;
    const int channel = static_cast<int>(i % static_cast<std::size_t>(channels));
    const std::size_t pixel = i - static_cast<std::size_t>(channel);
    return norm_base(norm.rule, channels, channel,
                     [&](int c) { return static_cast<float>(source[pixel + static_cast<std::size_t>(c)]); });
  }

  static std::size_t index(int height, int width, int channels, int b, int y, int x, int c) {
    return static_cast<std::size_t>(((b * height + y) * width + x) * channels + c);
  }

  NetPlan plan_;
  reference::Params params_, grads_;
  std::vector<Array> values_;
  std::vector<Array> between_;  ///< what a pooling gives the normalization in its stage
  std::vector<std::vector<std::uint8_t>> taps_;
};

}  // namespace cifar_mpi::cuda::testing
