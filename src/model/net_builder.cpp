#include "cifar_mpi/model/net_builder.hpp"

#include <cmath>
#include <limits>
#include <utility>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::model {
namespace {

/// Label 255 means "leave this sample out", so it cannot be a class.
constexpr int kMostClasses = 255;

std::string kind_or_name(const Layer& layer) {
  return std::visit(
      Overloaded{[](const Relu&) { return std::string("relu"); },
                 [](const SoftmaxCrossEntropy&) { return std::string("softmax cross-entropy"); },
                 [](const auto& named) { return named.name; }},
      layer);
}

/// Infers what one operation gives and throws what is wrong with it under its name.
class ShapeInference {
 public:
  ShapeInference(const NetSpec& net, const Layer& layer, const std::vector<Value>& inputs,
                 std::set<std::string>& names)
      : net_(net), layer_(layer), inputs_(inputs), in_(net.extent(inputs.front())), names_(names) {}

  Extent run() {
    const Extent out = std::visit(*this, layer_);
    const double values = 1.0 * out.height * out.width * out.channels;
    expect(values <= std::numeric_limits<int>::max(), concat("gives too many values: ", to_string(out)));
    return out;
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
  Extent operator()(const Add&) {
    expect(inputs_.size() == 2, concat("needs two inputs, found ", inputs_.size()));
    const Extent& other = net_.extent(inputs_.back());
    expect(in_ == other,
           concat("needs two inputs of one extent, found ", to_string(in_), " and ", to_string(other)));
    return in_;
  }
  Extent operator()(const SoftmaxCrossEntropy&) {
    const Extent wanted{1, 1, net_.classes};
    expect(in_ == wanted, concat("needs an input of ", to_string(wanted), " for ", net_.classes,
                                 " classes, found ", to_string(in_)));
    return in_;
  }

 private:
  void expect(bool good, const std::string& otherwise) const {
    if (good) return;
    throw Error(ErrorKind::usage, concat("model ", net_.name, ": layer ", net_.operations.size() + 1, " (",
                                         kind_or_name(layer_), ") ", otherwise));
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
    expect(std::isfinite(layer.rate_factor) && layer.rate_factor >= 0.0f,
           concat("needs a finite rate_factor of at least 0, found ", layer.rate_factor));
  }

  const NetSpec& net_;
  const Layer& layer_;
  const std::vector<Value>& inputs_;
  Extent in_;
  std::set<std::string>& names_;
};

}  // namespace

NetBuilder::NetBuilder(std::string name, Extent image, int classes)
    : net_{std::move(name), image, classes, {}, {image}} {
  if (image.height < 1 || image.width < 1 || image.channels < 1) {
    throw Error(ErrorKind::usage,
                concat("model ", net_.name, " needs an input of at least 1x1x1, found ", to_string(image)));
  }
  if (classes < 2 || classes > kMostClasses) {
    throw Error(ErrorKind::usage,
                concat("model ", net_.name, " needs 2 to ", kMostClasses, " classes, found ", classes));
  }
}

Value NetBuilder::append(Layer layer, std::vector<Value> inputs) {
  const Extent out = ShapeInference(net_, layer, inputs, names_).run();
  std::string name = kind_or_name(layer);
  if (std::holds_alternative<Relu>(layer)) name += concat(' ', net_.operations.size());
  const Value output{net_.values.size()};
  net_.operations.push_back({std::move(name), std::move(layer), std::move(inputs), output});
  net_.values.push_back(out);
  return output;
}

NetSpec NetBuilder::softmax_cross_entropy(Value logits) {
  append(SoftmaxCrossEntropy{}, {logits});
  const auto readers = readers_of(net_);
  for (const Operation& operation : net_.operations) {
    if (&operation == &net_.operations.back() || !readers[operation.output.id].empty()) continue;
    throw Error(ErrorKind::usage,
                concat("model ", net_.name, ": nobody reads what ", operation.name, " gives"));
  }
  return std::move(net_);
}

}  // namespace cifar_mpi::model
