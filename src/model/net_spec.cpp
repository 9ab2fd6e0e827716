#include "cifar_mpi/model/net_spec.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::model {
namespace {

/// Label 255 means "leave this sample out", so it cannot be a class.
constexpr int kMostClasses = 255;

/// "layer 4 (conv2)" or "layer 2 (relu)", counted from 1.
std::string label_of(const Layer& layer, std::size_t index) {
  const std::string what =
      std::visit(Overloaded{[](const Relu&) { return std::string("relu"); },
                            [](const SoftmaxCrossEntropy&) { return std::string("softmax cross-entropy"); },
                            [](const auto& named) { return named.name; }},
                 layer);
  return concat("layer ", index + 1, " (", what, ")");
}

/// Infers the output of one layer after another and throws what is wrong with a layer under its name.
class ShapeInference {
 public:
  explicit ShapeInference(NetSpec& net) : net_(net) {}

  void run() {
    for (index_ = 0; index_ < net_.layers.size(); ++index_) {
      in_ = net_.input_of(index_);
      const Extent out = std::visit(*this, net_.layers[index_]);
      const double values = double{1.0} * out.height * out.width * out.channels;
      expect(values <= std::numeric_limits<int>::max(), concat("gives too many values: ", to_string(out)));
      net_.outputs.push_back(out);
    }
  }

  Extent operator()(const Conv2d& layer) {
    expect_parameters(layer);
    expect(layer.out_channels >= 1, concat("needs at least 1 output channel, found ", layer.out_channels));
    expect(layer.kernel >= 1, concat("needs a kernel of at least 1, found ", layer.kernel));
    return {in_.height, in_.width, layer.out_channels};
  }
  Extent operator()(const Relu&) { return in_; }
  Extent operator()(const MaxPool& layer) {
    expect(layer.kernel >= 1 && layer.stride >= 1,
           concat("needs a kernel and a stride of at least 1, found ", layer.kernel, " and ", layer.stride));
    return {same_padding(in_.height, layer.kernel, layer.stride).outputs,
            same_padding(in_.width, layer.kernel, layer.stride).outputs, in_.channels};
  }
  Extent operator()(const LocalResponseNorm& layer) {
    expect(layer.depth_radius >= 0, concat("needs a depth radius of at least 0, found ", layer.depth_radius));
    expect(std::isfinite(layer.bias) && layer.bias > 0.0f,
           concat("needs a bias above 0, found ", layer.bias));
    expect(std::isfinite(layer.alpha) && layer.alpha >= 0.0f,
           concat("needs an alpha of at least 0, found ", layer.alpha));
    expect(std::isfinite(layer.beta), concat("needs a finite beta, found ", layer.beta));
    return in_;
  }
  Extent operator()(const Linear& layer) {
    expect_parameters(layer);
    expect(layer.outputs >= 1, concat("needs at least 1 output, found ", layer.outputs));
    return {1, 1, layer.outputs};
  }
  Extent operator()(const SoftmaxCrossEntropy&) {
    expect(index_ + 1 == net_.layers.size(), "must be the last layer");
    const Extent wanted{1, 1, net_.classes};
    expect(in_ == wanted, concat("needs an input of ", to_string(wanted), " for ", net_.classes,
                                 " classes, found ", to_string(in_)));
    return in_;
  }

 private:
  void expect(bool good, const std::string& otherwise) const {
    if (good) return;
    throw Error(ErrorKind::usage,
                concat("model ", net_.name, ": ", label_of(net_.layers[index_], index_), " ", otherwise));
  }

  template <class L>
  void expect_parameters(const L& layer) {
    expect(!layer.name.empty(), "needs a name for its parameters");
    expect(names_.insert(layer.name).second,
           "has a name that an earlier layer has; parameters are found by name");
    for (const float value : {layer.weight_stddev, layer.weight_decay}) {
      expect(std::isfinite(value) && value >= 0.0f,
             concat("needs a finite weight_stddev and weight_decay of at least 0, found ", value));
    }
    expect(std::isfinite(layer.bias), concat("needs a finite initial bias, found ", layer.bias));
  }

  NetSpec& net_;
  std::size_t index_ = 0;
  Extent in_;
  std::set<std::string> names_;
};

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

}  // namespace

NetSpec make_net(std::string name, Extent input, int classes, std::vector<Layer> layers) {
  NetSpec net{std::move(name), input, classes, std::move(layers), {}};
  if (input.height < 1 || input.width < 1 || input.channels < 1) {
    throw Error(ErrorKind::usage,
                concat("model ", net.name, " needs an input of at least 1x1x1, found ", to_string(input)));
  }
  if (classes < 2 || classes > kMostClasses) {
    throw Error(ErrorKind::usage,
                concat("model ", net.name, " needs 2 to ", kMostClasses, " classes, found ", classes));
  }
  ShapeInference(net).run();
  if (net.layers.empty() || !std::holds_alternative<SoftmaxCrossEntropy>(net.layers.back())) {
    const std::string found =
        net.layers.empty() ? "no layer at all" : label_of(net.layers.back(), net.layers.size() - 1);
    throw Error(ErrorKind::usage,
                concat("model ", net.name, " must end with softmax cross-entropy, found ", found));
  }
  return net;
}

std::vector<Flops> forward_flops(const NetSpec& net) {
  std::vector<Flops> flops;
  for (std::size_t i = 0; i < net.layers.size(); ++i) {
    const Extent in = net.input_of(i);
    flops.push_back(
        std::visit(Overloaded{[&](const Conv2d& layer) { return conv_flops(layer, in); },
                              [&](const Linear& layer) { return linear_flops(layer, in); },
                              [](const Relu&) { return Flops{}; }, [](const MaxPool&) { return Flops{}; },
                              [](const LocalResponseNorm&) { return Flops{}; },
                              [](const SoftmaxCrossEntropy&) { return Flops{}; }},
                   net.layers[i]));
  }
  return flops;
}

Flops training_flops(const NetSpec& net) {
  Flops total;
  bool first = true;
  for (const Flops& forward : forward_flops(net)) {
    if (forward.nominal == 0.0) continue;
    const double passes = first ? 2.0 : 3.0;
    total.nominal += passes * forward.nominal;
    total.in_image += passes * forward.in_image;
    first = false;
  }
  return total;
}

}  // namespace cifar_mpi::model
