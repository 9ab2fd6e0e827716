#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>

#include "reference/reference.hpp"

/// Composes the layer functions to a network.
namespace cifar_mpi::reference {
namespace {

/// A layer's position in the network, its input and the batch.
struct Place {
  std::size_t layer = 0;
  Extent in;
  int batch = 0;
};

ConvShape shape_of(const model::Conv2d& layer, const Place& at) {
  return {at.batch, at.in, layer.out_channels, layer.kernel, layer.stride, layer.valid};
}
PoolShape shape_of(const model::MaxPool& layer, const Place& at) {
  return {at.batch, at.in, layer.kernel, layer.stride, layer.valid};
}
LinearShape shape_of(const model::Linear& layer, const Place& at) {
  return {at.batch, at.in.count(), layer.outputs};
}

Array sum_of(Array a, const Array& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

template <class Layer>
bool is(const model::NetSpec& net, std::size_t operation) {
  return std::holds_alternative<Layer>(net.operations[operation].layer);
}
bool is_silu(const model::NetSpec& net, std::size_t operation) {
  const auto* const layer = std::get_if<model::Pointwise>(&net.operations[operation].layer);
  return layer != nullptr && layer->kind == model::PointwiseKind::silu;
}

struct ForwardLayer {
  const model::ParamTable& table;
  const Params& params;
  std::vector<const Array*> inputs;
  Place at;
  Statistics statistics = Statistics::of_batch;

  const Array& param(std::size_t i) const { return params[model::params_of(table, at.layer)[i]]; }
  const Array& weights() const { return param(0); }
  const Array& biases() const { return param(1); }

  Array operator()(const model::Conv2d& layer) const {
    return conv_forward(shape_of(layer, at), *inputs[0], weights(), layer.with_bias ? biases() : Array());
  }
  Array operator()(const model::BatchNorm& layer) const {
    const std::size_t first = layer.with_scale ? 1 : 0;
    const Moments moments = statistics == Statistics::of_batch ? moments_of(at.in.channels, *inputs[0])
                                                               : Moments{param(first + 1), param(first + 2)};
    const Array ones(static_cast<std::size_t>(at.in.channels), 1.0);
    return batch_norm_forward(layer, *inputs[0], layer.with_scale ? param(0) : ones, param(first), moments);
  }
  Array operator()(const model::GlobalAvgPool&) const {
    return global_avg_pool_forward(at.batch, at.in, *inputs[0]);
  }
  Array operator()(const model::Shortcut& layer) const {
    return shortcut_forward(layer, at.batch, at.in, *inputs[0]);
  }
  Array operator()(const model::Relu&) const { return relu_forward(*inputs[0]); }
  Array operator()(const model::Pointwise& layer) const { return pointwise_forward(layer, *inputs[0]); }
  Array operator()(const model::MaxPool& layer) const {
    return pool_forward(shape_of(layer, at), *inputs[0]);
  }
  Array operator()(const model::LocalResponseNorm& layer) const {
    return lrn_forward(layer, at.in.channels, *inputs[0]);
  }
  Array operator()(const model::Linear& layer) const {
    const Array zeros(static_cast<std::size_t>(layer.outputs), 0.0);
    return linear_forward(shape_of(layer, at), *inputs[0], weights(), layer.with_bias ? biases() : zeros);
  }
  Array operator()(const model::Add&) const { return sum_of(*inputs[0], *inputs[1]); }
  Array operator()(const model::SoftmaxCrossEntropy&) const {
    const std::vector<std::uint8_t> nobody(static_cast<std::size_t>(at.batch), 255);
    return softmax_cross_entropy(at.in.count(), *inputs[0], nobody, 1.0).probabilities;
  }
};

/// Returns the gradient of each of the layer's inputs and stores those of its trained parameters.
struct BackwardLayer {
  const model::ParamTable& table;
  const Params& params;
  const Array& x;
  const Array& grad_y;
  Params& grads;
  Place at;

  Array operator()(const model::Conv2d& layer) const {
    const std::vector<std::size_t> own = model::params_of(table, at.layer);
    if (!layer.frozen && !layer.frozen_weights)
      grads[own[0]] = conv_grad_weights(shape_of(layer, at), x, grad_y);
    if (!layer.frozen && layer.with_bias) grads[own[1]] = grad_biases(layer.out_channels, grad_y);
    return conv_grad_x(shape_of(layer, at), params[own[0]], grad_y);
  }
  Array operator()(const model::BatchNorm& layer) const {
    const std::vector<std::size_t> own = model::params_of(table, at.layer);
    const std::size_t first = layer.with_scale ? 1 : 0;
    const Array ones(static_cast<std::size_t>(at.in.channels), 1.0);
    BatchNormGrads all = batch_norm_backward(layer, x, layer.with_scale ? params[own[0]] : ones, grad_y);
    const Moments moments = moments_of(at.in.channels, x);
    grads[own[first + 1]] = moments.mean;
    grads[own[first + 2]] = moments.variance;
    if (!layer.frozen) {
      if (layer.with_scale) grads[own[0]] = std::move(all.scale);
      grads[own[first]] = std::move(all.biases);
    }
    return std::move(all.x);
  }
  Array operator()(const model::GlobalAvgPool&) const {
    return global_avg_pool_grad_x(at.batch, at.in, grad_y);
  }
  Array operator()(const model::Shortcut& layer) const {
    return shortcut_grad_x(layer, at.batch, at.in, grad_y);
  }
  Array operator()(const model::Relu&) const { return relu_grad_x(x, grad_y); }
  Array operator()(const model::Pointwise& layer) const { return pointwise_grad_x(layer, x, grad_y); }
  Array operator()(const model::MaxPool& layer) const { return pool_grad_x(shape_of(layer, at), x, grad_y); }
  Array operator()(const model::LocalResponseNorm& layer) const {
    return lrn_grad_x(layer, at.in.channels, x, grad_y);
  }
  Array operator()(const model::Linear& layer) const {
    const std::vector<std::size_t> own = model::params_of(table, at.layer);
    if (!layer.frozen) {
      grads[own[0]] = linear_grad_weights(shape_of(layer, at), x, grad_y);
      if (layer.with_bias) grads[own[1]] = grad_biases(layer.outputs, grad_y);
    }
    return linear_grad_x(shape_of(layer, at), params[own[0]], grad_y);
  }
  Array operator()(const model::Add&) const { return grad_y; }                  // of both inputs
  Array operator()(const model::SoftmaxCrossEntropy&) const { return grad_y; }  // of the logits already
};

}  // namespace

Params initial_params(const model::ParamTable& table, std::uint64_t seed) {
  Params params;
  for (const model::Param& param : table) {
    std::vector<float> values(static_cast<std::size_t>(param.shape.count()));
    model::fill_initial(param, seed, values);
    params.emplace_back(values.begin(), values.end());
  }
  return params;
}

std::vector<Array> forward(const model::NetSpec& net, const Params& params, const Array& x, int batch,
                           const Rounding& round, Statistics statistics, Normalized normalized) {
  const model::ParamTable table = model::make_param_table(net);
  assert(params.size() == table.size());
  const std::size_t last = net.operations.size() - 1;
  std::vector<Array> values{round(x)};  // by Value::id; each operation adds the next
  for (std::size_t i = 0; i <= last; ++i) {
    std::vector<const Array*> inputs;
    for (const model::Value input : net.operations[i].inputs) inputs.push_back(&values[input.id]);
    Array y = std::visit(ForwardLayer{table, params, inputs, {i, net.input_of(i), batch}, statistics},
                         net.operations[i].layer);
    const bool logits = net.operations[i].output == net.logits();
    const bool stays_exact = normalized == Normalized::exact && i < last && is<model::BatchNorm>(net, i) &&
                             (is<model::Add>(net, i + 1) || is_silu(net, i + 1));
    const bool exact = i == last || stays_exact ||
                       (logits && std::holds_alternative<model::Linear>(net.operations[i].layer));
    values.push_back(exact ? std::move(y) : round(std::move(y)));
  }
  values.erase(values.begin());
  return values;
}

LossAndGradients loss_and_gradients(const model::NetSpec& net, const model::ParamTable& table,
                                    const Params& params, const Array& x,
                                    std::span<const std::uint8_t> labels, int batch, double global_batch,
                                    const Rounding& round) {
  assert(labels.size() == static_cast<std::size_t>(batch));
  LossAndGradients result;
  Params rounded = params;
  for (std::size_t p = 0; p < table.size(); ++p) {
    if (table[p].part == model::ParamPart::weights) rounded[p] = round(std::move(rounded[p]));
  }
  result.activations = forward(net, rounded, x, batch, round);
  const Loss loss =
      softmax_cross_entropy(net.classes, result.activations[net.logits().id - 1], labels, global_batch);
  result.loss_sum = loss.sum;
  result.correct = loss.correct;
  result.samples = loss.samples;
  result.grads = backward(net, table, rounded, x, result.activations, net.logits(), round(loss.grad_logits),
                          batch, round)
                     .params;
  return result;
}

Gradients backward(const model::NetSpec& net, const model::ParamTable& table, const Params& params,
                   const Array& x, const std::vector<Array>& activations, model::Value from, Array grad,
                   int batch, const Rounding& round) {
  const Array image = round(x);
  const auto value = [&](model::Value v) -> const Array& {
    return v.id == 0 ? image : activations[v.id - 1];
  };
  Gradients result{Params(table.size()), std::vector<Array>(net.values.size())};
  std::vector<Array>& grads = result.values;  // readers add to it, the last one first
  grads[from.id] = std::move(grad);
  for (std::size_t i = net.operations.size() - 1; i-- > 0;) {
    const model::Operation& operation = net.operations[i];
    const Array& grad_y = grads[operation.output.id];
    if (grad_y.empty()) continue;
    const Array share = round(std::visit(
        BackwardLayer{
            table, params, value(operation.inputs[0]), grad_y, result.params, {i, net.input_of(i), batch}},
        operation.layer));
    for (const model::Value input : operation.inputs) {
      Array& grad_x = grads[input.id];
      grad_x = grad_x.empty() ? share : round(sum_of(std::move(grad_x), share));
    }
  }
  return result;
}

double gradient_distance(const model::ParamTable& table, const Array& found, const Params& wanted,
                         std::size_t p) {
  const auto length = [](const Array& values) {
    double square = 0.0;
    for (const double value : values) square += value * value;
    return std::sqrt(square);
  };
  assert(found.size() == wanted[p].size());
  Array difference = found;
  for (std::size_t i = 0; i < found.size(); ++i) difference[i] -= wanted[p][i];
  double scale = length(wanted[p]);
  for (const std::size_t own : model::params_of(table, table[p].operation)) {
    const bool cancels =
        table[p].part == model::ParamPart::biases || table[p].part == model::ParamPart::scale;
    if (cancels && table[own].role == model::ParamRole::trained) scale = std::max(scale, length(wanted[own]));
    if (table[p].part == model::ParamPart::mean && table[own].part == model::ParamPart::variance) {
      scale = std::max(scale, std::sqrt(std::accumulate(wanted[own].begin(), wanted[own].end(), 0.0)));
    }
  }
  return length(difference) / std::max(scale, 1e-300);
}

double layers_passed(const model::NetSpec& net) {
  return std::sqrt(2.0 * static_cast<double>(net.operations.size()));
}

double relative_tolerance(const model::NetSpec& net, double eps) {
  double longest = 1.0;
  for (std::size_t i = 0; i < net.operations.size(); ++i) {
    const Extent in = net.input_of(i);
    if (const auto* const conv = std::get_if<model::Conv2d>(&net.operations[i].layer)) {
      longest = std::max(longest, 1.0 * conv->kernel * conv->kernel * in.channels);
    } else if (std::holds_alternative<model::Linear>(net.operations[i].layer)) {
      longest = std::max(longest, 1.0 * in.count());
    } else if (std::holds_alternative<model::GlobalAvgPool>(net.operations[i].layer)) {
      longest = std::max(longest, 1.0 * in.height * in.width);
    }
  }
  return layers_passed(net) * eps * std::sqrt(longest);
}

double relative_distance(const Array& found, const Array& wanted) {
  if (found.size() != wanted.size()) return INFINITY;
  double difference = 0.0, size = 0.0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    difference += (found[i] - wanted[i]) * (found[i] - wanted[i]);
    size += wanted[i] * wanted[i];
  }
  return std::sqrt(difference / std::max(size, 1e-300));
}

}  // namespace cifar_mpi::reference
