#include "model/layer_facts.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::model {
namespace {

using Extents = std::span<const Extent>;

void expect(bool good, const std::string& otherwise) {
  if (!good) throw Misfit{otherwise};
}

/// Kernel taps that fall inside the image, summed over all outputs of one axis.
double taps_inside(int n, const Conv2d& layer) {
  const int kernel = layer.kernel, stride = layer.stride;
  const Padding padding = padding_of(layer, n);
  double taps = 0.0;
  for (int i = 0; i < padding.outputs; ++i) {
    const int first = std::max(stride * i - padding.before, 0);
    const int last = std::min(stride * i - padding.before + kernel, n);
    taps += std::max(last - first, 0);
  }
  return taps;
}

template <class L>
void expect_window_inside(const L& layer, const Extent& in) {
  expect(!layer.valid || layer.kernel <= std::min(in.height, in.width),
         concat("has a window of ", layer.kernel,
                " without padding, which needs an input of at least that size, found ", to_string(in)));
}

void expect_at_least_0(const char* what, float value) {
  expect(std::isfinite(value) && value >= 0.0f,
         concat("needs a finite ", what, " of at least 0, found ", value));
}

/// Weights of this shape and a bias per output, which is the last extent.
template <class L>
std::vector<Param> weights_and_biases(const L& layer, const Shape& shape, const char* dims) {
  expect_at_least_0("weight_stddev", layer.weight_stddev);
  expect_at_least_0("weight_decay", layer.weight_decay);
  expect_at_least_0("rate_factor", layer.rate_factor);
  expect(std::isfinite(layer.bias), concat("needs a finite initial bias, found ", layer.bias));
  Param weights{.name = layer.name + "/weights",
                .shape = shape,
                .dims = dims,
                .part = ParamPart::weights,
                .role = layer.frozen ? ParamRole::frozen : ParamRole::trained,
                .stddev = layer.weight_stddev,
                .weight_decay = layer.weight_decay,
                .rate_factor = layer.rate_factor};
  Param biases{.name = layer.name + "/biases",
               .shape = {shape[shape.rank() - 1]},
               .dims = "[out]",
               .part = ParamPart::biases,
               .role = weights.role,
               .constant = layer.bias,
               .rate_factor = layer.rate_factor};
  return {std::move(weights), std::move(biases)};
}

LayerFacts facts(const Conv2d& layer, Extents in, int) {
  expect(layer.out_channels >= 1, concat("needs at least 1 output channel, found ", layer.out_channels));
  expect(layer.kernel >= 1, concat("needs a kernel of at least 1, found ", layer.kernel));
  expect(layer.stride >= 1, concat("needs a stride of at least 1, found ", layer.stride));
  const Extent& x = in[0];
  expect_window_inside(layer, x);
  const Extent y{padding_of(layer, x.height).outputs, padding_of(layer, x.width).outputs, layer.out_channels};
  const double per_tap = 2.0 * x.channels * layer.out_channels;
  const auto taps = [&](int n) { return taps_inside(n, layer); };
  const Flops flops{per_tap * y.height * y.width * layer.kernel * layer.kernel,
                    per_tap * taps(x.height) * taps(x.width)};
  std::vector<Param> params = weights_and_biases(
      layer, {layer.kernel, layer.kernel, x.channels, layer.out_channels}, "[height, width, in, out]");
  if (layer.frozen_weights) params[0].role = ParamRole::frozen;
  params[0].init = layer.filters == Filters::normal     ? ParamInit::normal
                   : layer.filters == Filters::identity ? ParamInit::identity
                                                        : ParamInit::whitening;
  const int patch = layer.kernel * layer.kernel * x.channels;
  expect(layer.filters != Filters::whitening || layer.out_channels == 2 * patch,
         concat("whitens patches of ", patch, " values, which needs ", 2 * patch, " output channels, found ",
                layer.out_channels));
  params[1].steps = layer.bias_steps;
  if (!layer.with_bias) params.pop_back();
  return {"Conv2d", y, flops, std::move(params)};
}

LayerFacts facts(const BatchNorm& layer, Extents in, int) {
  expect(std::isfinite(layer.epsilon) && layer.epsilon > 0.0f,
         concat("needs an epsilon above 0, found ", layer.epsilon));
  expect(layer.momentum >= 0.0f && layer.momentum < 1.0f,
         concat("needs a momentum from 0 to below 1, found ", layer.momentum));
  expect_at_least_0("weight_decay", layer.weight_decay);
  expect_at_least_0("rate_factor", layer.rate_factor);
  Param scale{.name = layer.name + "/scale",
              .shape = {in[0].channels},
              .dims = "[channels]",
              .part = ParamPart::scale,
              .role = layer.frozen ? ParamRole::frozen : ParamRole::trained,
              .constant = 1.0f,
              .weight_decay = layer.weight_decay,
              .rate_factor = layer.rate_factor};
  Param bias = scale;
  bias.name = layer.name + "/biases";
  bias.part = ParamPart::biases;
  bias.constant = 0.0f;
  Param mean{.name = layer.name + "/mean",
             .shape = scale.shape,
             .dims = scale.dims,
             .part = ParamPart::mean,
             .role = ParamRole::running,
             .rate_factor = 1.0f - layer.momentum};
  Param variance = mean;
  variance.name = layer.name + "/variance";
  variance.part = ParamPart::variance;
  variance.constant = 1.0f;
  if (!layer.with_scale) return {"BatchNorm", in[0], {}, {bias, mean, variance}};
  return {"BatchNorm", in[0], {}, {scale, bias, mean, variance}};
}

LayerFacts facts(const GlobalAvgPool&, Extents in, int) {
  return {"GlobalAvgPool", {1, 1, in[0].channels}, {}, {}};
}

LayerFacts facts(const Shortcut& layer, Extents in, int) {
  expect(layer.stride >= 1, concat("needs a stride of at least 1, found ", layer.stride));
  expect(layer.out_channels >= in[0].channels,
         concat("needs at least the ", in[0].channels, " channels of its input, found ", layer.out_channels));
  const auto out = [&](int n) { return (n + layer.stride - 1) / layer.stride; };
  return {"Shortcut", {out(in[0].height), out(in[0].width), layer.out_channels}, {}, {}};
}

LayerFacts facts(const Relu&, Extents in, int) { return {"ReLU", in[0], {}, {}}; }

LayerFacts facts(const Pointwise& layer, Extents in, int) {
  expect(std::isfinite(layer.factor), concat("needs a finite factor, found ", layer.factor));
  constexpr const char* kKinds[] = {"SiLU", "GELU", "Scale"};
  return {kKinds[static_cast<std::size_t>(layer.kind)], in[0], {}, {}};
}

LayerFacts facts(const MaxPool& layer, Extents in, int) {
  expect(layer.kernel >= 1 && layer.stride >= 1,
         concat("needs a kernel and a stride of at least 1, found ", layer.kernel, " and ", layer.stride));
  expect_window_inside(layer, in[0]);
  const auto out = [&](int n) { return padding_of(layer, n).outputs; };
  return {"MaxPool", {out(in[0].height), out(in[0].width), in[0].channels}, {}, {}};
}

LayerFacts facts(const LocalResponseNorm& layer, Extents in, int) {
  expect(layer.depth_radius >= 0, concat("needs a depth radius of at least 0, found ", layer.depth_radius));
  expect(std::isfinite(layer.bias) && layer.bias > 0.0f, concat("needs a bias above 0, found ", layer.bias));
  expect(std::isfinite(layer.alpha) && layer.alpha >= 0.0f,
         concat("needs an alpha of at least 0, found ", layer.alpha));
  expect(std::isfinite(layer.beta), concat("needs a finite beta, found ", layer.beta));
  return {"LocalResponseNorm", in[0], {}, {}};
}

LayerFacts facts(const Linear& layer, Extents in, int) {
  expect(layer.outputs >= 1, concat("needs at least 1 output, found ", layer.outputs));
  const double flops = 2.0 * in[0].count() * layer.outputs;
  std::vector<Param> params = weights_and_biases(layer, {in[0].count(), layer.outputs}, "[in, out]");
  if (!layer.with_bias) params.pop_back();
  return {"Linear", {1, 1, layer.outputs}, {flops, flops}, std::move(params)};
}

LayerFacts facts(const Add&, Extents in, int) {
  expect(in.size() == 2, concat("needs two inputs, found ", in.size()));
  expect(in[0] == in[1],
         concat("needs two inputs of one extent, found ", to_string(in[0]), " and ", to_string(in[1])));
  return {"Add", in[0], {}, {}};
}

LayerFacts facts(const SoftmaxCrossEntropy&, Extents in, int classes) {
  const Extent wanted{1, 1, classes};
  expect(in[0] == wanted, concat("needs an input of ", to_string(wanted), " for ", classes,
                                 " classes, found ", to_string(in[0])));
  return {"SoftmaxCrossEntropy", in[0], {}, {}};
}

const char* unnamed(const Relu&) { return "relu"; }
const char* unnamed(const Pointwise& layer) {
  constexpr const char* kNames[] = {"silu", "gelu", "scale"};
  return kNames[static_cast<std::size_t>(layer.kind)];
}
const char* unnamed(const SoftmaxCrossEntropy&) { return "softmax cross-entropy"; }

}  // namespace

std::string name_of(const Layer& layer) {
  return std::visit(
      [](const auto& one) -> std::string {
        if constexpr (requires { one.name; }) {
          return one.name;
        } else {
          return unnamed(one);
        }
      },
      layer);
}

LayerFacts facts_of(const Layer& layer, Extents in, int classes) {
  return std::visit([&](const auto& one) { return facts(one, in, classes); }, layer);
}

}  // namespace cifar_mpi::model
