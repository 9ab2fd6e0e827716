#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cpu/bf16.hpp"
#include "reference/reference.hpp"

/// The reference with the roundings of bf16 training: everything a layer hands on, forward or backward, and
/// every weight it uses is rounded to bf16; sums, parameter gradients and logits are not.
///
/// Without it a test of bf16 is blunt: rounding sends a few per cent of the poolings to another place, each a
/// whole gradient wrong. With it both sides choose alike.
namespace cifar_mpi::cpu {

inline reference::Array to_bf16_values(reference::Array values) {
  for (double& value : values) value = to_float(to_bf16(static_cast<float>(value)));
  return values;
}

class Bf16Reference {
 public:
  using Array = reference::Array;

  Bf16Reference(const model::NetSpec& net, const model::ParamTable& table, reference::Params params,
                int batch)
      : net_(net), table_(table), params_(std::move(params)), batch_(batch) {
    for (std::size_t p = 0; p < table.size(); ++p) {
      if (table[p].shape.rank() > 1) params_[p] = to_bf16_values(std::move(params_[p]));
    }
  }

  reference::LossAndGradients run(const Array& x, std::span<const std::uint8_t> labels, double global_batch) {
    reference::LossAndGradients result;
    std::vector<Array>& values = result.activations;  // values[i] goes into layer i
    values.push_back(to_bf16_values(x));
    const std::size_t last = net_.layers.size() - 1;
    for (std::size_t i = 0; i < last; ++i) {
      Array y = forward(i, values[i]);
      const bool fp32 = i + 1 == last && std::holds_alternative<model::Linear>(net_.layers[i]);
      values.push_back(fp32 ? std::move(y) : to_bf16_values(std::move(y)));
    }
    const reference::Loss loss =
        reference::softmax_cross_entropy(net_.classes, values[last], labels, global_batch);
    result.loss_sum = loss.sum;
    result.samples = loss.samples;
    result.grads.resize(table_.size());
    Array grad = to_bf16_values(loss.grad_logits);
    for (std::size_t i = last; i-- > 0;) grad = to_bf16_values(backward(i, values[i], grad, result.grads));
    return result;
  }

 private:
  std::size_t find(std::size_t layer, bool matrix) const {
    std::size_t p = 0;
    while (table_[p].layer != layer || (table_[p].shape.rank() > 1) != matrix) ++p;
    return p;
  }
  reference::ConvShape shape(const model::Conv2d& layer, std::size_t i) const {
    return {batch_, net_.input_of(i), layer.out_channels, layer.kernel};
  }
  reference::PoolShape shape(const model::MaxPool& layer, std::size_t i) const {
    return {batch_, net_.input_of(i), layer.kernel, layer.stride};
  }
  reference::LinearShape shape(const model::Linear& layer, std::size_t i) const {
    return {batch_, net_.input_of(i).count(), layer.outputs};
  }

  Array forward(std::size_t i, const Array& x) const {
    const auto weights = [&] { return params_[find(i, true)]; };
    const auto biases = [&] { return params_[find(i, false)]; };
    return std::visit(
        model::Overloaded{[&](const model::Conv2d& l) {
                            return reference::conv_forward(shape(l, i), x, weights(), biases());
                          },
                          [&](const model::Linear& l) {
                            return reference::linear_forward(shape(l, i), x, weights(), biases());
                          },
                          [&](const model::MaxPool& l) { return reference::pool_forward(shape(l, i), x); },
                          [&](const model::LocalResponseNorm& l) {
                            return reference::lrn_forward(l, net_.input_of(i).channels, x);
                          },
                          [&](const model::Relu&) { return reference::relu_forward(x); },
                          [&](const model::SoftmaxCrossEntropy&) { return x; }},
        net_.layers[i]);
  }

  Array backward(std::size_t i, const Array& x, const Array& grad, reference::Params& grads) const {
    return std::visit(
        model::Overloaded{
            [&](const model::Conv2d& l) {
              grads[find(i, true)] = reference::conv_grad_weights(shape(l, i), x, grad);
              grads[find(i, false)] = reference::grad_biases(l.out_channels, grad);
              return reference::conv_grad_x(shape(l, i), params_[find(i, true)], grad);
            },
            [&](const model::Linear& l) {
              grads[find(i, true)] = reference::linear_grad_weights(shape(l, i), x, grad);
              grads[find(i, false)] = reference::grad_biases(l.outputs, grad);
              return reference::linear_grad_x(shape(l, i), params_[find(i, true)], grad);
            },
            [&](const model::MaxPool& l) { return reference::pool_grad_x(shape(l, i), x, grad); },
            [&](const model::LocalResponseNorm& l) {
              return reference::lrn_grad_x(l, net_.input_of(i).channels, x, grad);
            },
            [&](const model::Relu&) { return reference::relu_grad_x(x, grad); },
            [&](const model::SoftmaxCrossEntropy&) { return grad; }},
        net_.layers[i]);
  }

  const model::NetSpec& net_;
  const model::ParamTable& table_;
  reference::Params params_;
  int batch_;
};

}  // namespace cifar_mpi::cpu
