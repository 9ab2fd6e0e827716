#include <cassert>

#include "reference/reference.hpp"

/// The layer functions strung together for a whole network.
namespace cifar_mpi::reference {
namespace {

/// The two parameters of a layer in the table.
struct Pair {
  std::size_t weights = 0;
  std::size_t biases = 0;
};

Pair find_pair(const model::ParamTable& table, std::size_t layer) {
  Pair pair{table.size(), table.size()};
  for (std::size_t p = 0; p < table.size(); ++p) {
    if (table[p].layer != layer) continue;
    (table[p].name.ends_with("/weights") ? pair.weights : pair.biases) = p;
  }
  assert(pair.weights < table.size() && pair.biases < table.size());
  return pair;
}

/// Where one layer stands: its place in the net, its input and the batch.
struct Place {
  std::size_t layer = 0;
  Extent in;
  int batch = 0;
};

ConvShape shape_of(const model::Conv2d& layer, const Place& at) {
  return {at.batch, at.in, layer.out_channels, layer.kernel};
}
PoolShape shape_of(const model::MaxPool& layer, const Place& at) {
  return {at.batch, at.in, layer.kernel, layer.stride};
}
LinearShape shape_of(const model::Linear& layer, const Place& at) {
  return {at.batch, at.in.count(), layer.outputs};
}

struct ForwardLayer {
  const model::ParamTable& table;
  const Params& params;
  const Array& x;
  Place at;

  const Array& weights() const { return params[find_pair(table, at.layer).weights]; }
  const Array& biases() const { return params[find_pair(table, at.layer).biases]; }

  Array operator()(const model::Conv2d& layer) const {
    return conv_forward(shape_of(layer, at), x, weights(), biases());
  }
  Array operator()(const model::Relu&) const { return relu_forward(x); }
  Array operator()(const model::MaxPool& layer) const { return pool_forward(shape_of(layer, at), x); }
  Array operator()(const model::LocalResponseNorm& layer) const {
    return lrn_forward(layer, at.in.channels, x);
  }
  Array operator()(const model::Linear& layer) const {
    return linear_forward(shape_of(layer, at), x, weights(), biases());
  }
  Array operator()(const model::SoftmaxCrossEntropy&) const {
    const std::vector<std::uint8_t> nobody(static_cast<std::size_t>(at.batch), 255);
    return softmax_cross_entropy(at.in.count(), x, nobody, 1.0).probabilities;
  }
};

/// Gives the gradient of the layer's input and stores those of its parameters.
struct BackwardLayer {
  const model::ParamTable& table;
  const Params& params;
  const Array& x;
  const Array& grad_y;
  Params& grads;
  Place at;

  Array operator()(const model::Conv2d& layer) const {
    const Pair pair = find_pair(table, at.layer);
    grads[pair.weights] = conv_grad_weights(shape_of(layer, at), x, grad_y);
    grads[pair.biases] = grad_biases(layer.out_channels, grad_y);
    return conv_grad_x(shape_of(layer, at), params[pair.weights], grad_y);
  }
  Array operator()(const model::Relu&) const { return relu_grad_x(x, grad_y); }
  Array operator()(const model::MaxPool& layer) const { return pool_grad_x(shape_of(layer, at), x, grad_y); }
  Array operator()(const model::LocalResponseNorm& layer) const {
    return lrn_grad_x(layer, at.in.channels, x, grad_y);
  }
  Array operator()(const model::Linear& layer) const {
    const Pair pair = find_pair(table, at.layer);
    grads[pair.weights] = linear_grad_weights(shape_of(layer, at), x, grad_y);
    grads[pair.biases] = grad_biases(layer.outputs, grad_y);
    return linear_grad_x(shape_of(layer, at), params[pair.weights], grad_y);
  }
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

std::vector<Array> forward(const model::NetSpec& net, const Params& params, const Array& x, int batch) {
  const model::ParamTable table = model::make_param_table(net);
  assert(params.size() == table.size());
  std::vector<Array> activations;
  for (std::size_t i = 0; i < net.layers.size(); ++i) {
    const Array& in = i == 0 ? x : activations.back();
    activations.push_back(
        std::visit(ForwardLayer{table, params, in, {i, net.input_of(i), batch}}, net.layers[i]));
  }
  return activations;
}

LossAndGradients loss_and_gradients(const model::NetSpec& net, const model::ParamTable& table,
                                    const Params& params, const Array& x,
                                    std::span<const std::uint8_t> labels, int batch, double global_batch) {
  assert(labels.size() == static_cast<std::size_t>(batch));
  LossAndGradients result;
  result.activations = forward(net, params, x, batch);
  const std::size_t last = net.layers.size() - 1;
  const Loss loss =
      softmax_cross_entropy(net.classes, last == 0 ? x : result.activations[last - 1], labels, global_batch);
  result.loss_sum = loss.sum;
  result.correct = loss.correct;
  result.samples = loss.samples;
  result.grads.resize(table.size());
  Array grad = loss.grad_logits;
  for (std::size_t i = last + 1; i-- > 0;) {
    const Array& in = i == 0 ? x : result.activations[i - 1];
    grad = std::visit(BackwardLayer{table, params, in, grad, result.grads, {i, net.input_of(i), batch}},
                      net.layers[i]);
  }
  return result;
}

}  // namespace cifar_mpi::reference
