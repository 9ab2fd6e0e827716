#include "cifar_mpi/model/net_spec.hpp"

#include <algorithm>

namespace cifar_mpi::model {
namespace {

/// Kernel taps that fall inside the image, summed over all outputs of one axis.
double taps_inside(int n, int kernel) {
  const SamePadding padding = same_padding(n, kernel, 1);
  double taps = 0.0;
  for (int i = 0; i < padding.outputs; ++i) {
    const int first = std::max(i - padding.before, 0);
    const int last = std::min(i - padding.before + kernel, n);
    taps += std::max(last - first, 0);
  }
  return taps;
}

Flops conv_flops(const Conv2d& layer, const Extent& in) {
  const double per_tap = 2.0 * in.channels * layer.out_channels;
  return {per_tap * in.height * in.width * layer.kernel * layer.kernel,
          per_tap * taps_inside(in.height, layer.kernel) * taps_inside(in.width, layer.kernel)};
}

Flops linear_flops(const Linear& layer, const Extent& in) {
  const double flops = 2.0 * in.count() * layer.outputs;
  return {flops, flops};
}

bool trains(const Layer& layer) {
  return std::visit(
      Overloaded{[](const Conv2d& conv) { return !conv.frozen; },
                 [](const Linear& linear) { return !linear.frozen; }, [](const Relu&) { return false; },
                 [](const MaxPool&) { return false; }, [](const LocalResponseNorm&) { return false; },
                 [](const Add&) { return false; }, [](const SoftmaxCrossEntropy&) { return false; }},
      layer);
}

}  // namespace

std::vector<std::vector<std::size_t>> readers_of(const NetSpec& net) {
  std::vector<std::vector<std::size_t>> readers(net.values.size());
  for (std::size_t i = 0; i < net.operations.size(); ++i) {
    for (const Value input : net.operations[i].inputs) readers[input.id].push_back(i);
  }
  return readers;
}

std::vector<bool> wants_gradient(const NetSpec& net) {
  std::vector<bool> wants(net.values.size(), false);
  for (const Operation& operation : net.operations) {
    const bool inherits = std::any_of(operation.inputs.begin(), operation.inputs.end(),
                                      [&](Value input) { return wants[input.id]; });
    wants[operation.output.id] = inherits || trains(operation.layer);
  }
  return wants;
}

std::vector<Flops> forward_flops(const NetSpec& net) {
  std::vector<Flops> flops;
  for (std::size_t i = 0; i < net.operations.size(); ++i) {
    const Extent in = net.input_of(i);
    flops.push_back(std::visit(
        Overloaded{[&](const Conv2d& layer) { return conv_flops(layer, in); },
                   [&](const Linear& layer) { return linear_flops(layer, in); },
                   [](const Relu&) { return Flops{}; }, [](const MaxPool&) { return Flops{}; },
                   [](const LocalResponseNorm&) { return Flops{}; }, [](const Add&) { return Flops{}; },
                   [](const SoftmaxCrossEntropy&) { return Flops{}; }},
        net.operations[i].layer));
  }
  return flops;
}

Flops training_flops(const NetSpec& net) {
  const std::vector<Flops> forward = forward_flops(net);
  const std::vector<bool> wants = wants_gradient(net);
  Flops total;
  for (std::size_t i = 0; i < net.operations.size(); ++i) {
    const Operation& operation = net.operations[i];
    const double passes =
        1.0 + (trains(operation.layer) ? 1.0 : 0.0) + (wants[operation.inputs.front().id] ? 1.0 : 0.0);
    total.nominal += passes * forward[i].nominal;
    total.in_image += passes * forward[i].in_image;
  }
  return total;
}

}  // namespace cifar_mpi::model
