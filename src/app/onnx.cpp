#include "app/onnx.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <utility>
#include <variant>

#include "cifar_mpi/base/build_info.hpp"
#include "cifar_mpi/base/text.hpp"
#include "report/protobuf.hpp"

namespace cifar_mpi::app {
namespace {

using report::Message;
using Ints = std::vector<std::int64_t>;

/// Numbers of onnx.proto.
enum ElementType { kFloat = 1, kUint8 = 2, kInt64 = 7 };
constexpr std::int64_t kIrVersion = 7, kOperatorSet = 13;
constexpr std::int64_t kToTheEnd = std::numeric_limits<std::int32_t>::max();

Message attribute(const char* name, float value) {
  return Message().bytes(1, name).number(2, value).number(20, std::int64_t{1});
}
Message attribute(const char* name, std::int64_t value) {
  return Message().bytes(1, name).number(3, value).number(20, std::int64_t{2});
}
Message attribute(const char* name, const Ints& values) {
  Message message;
  message.bytes(1, name);
  for (const std::int64_t value : values) message.number(8, value);
  return message.number(20, std::int64_t{7});
}

template <class T>
Message tensor(ElementType type, const std::string& name, const Ints& dims, std::span<const T> values) {
  static_assert(std::endian::native == std::endian::little, "ONNX stores raw data in this order");
  Message message;
  for (const std::int64_t dim : dims) message.number(1, dim);
  const auto bytes = std::as_bytes(values);
  return message.number(2, std::int64_t{type})
      .bytes(8, name)
      .bytes(9, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

/// A value of N entries with these further dimensions.
Message value_info(const char* name, ElementType type, const Ints& dims) {
  Message shape;
  shape.message(1, Message().bytes(2, "N"));
  for (const std::int64_t dim : dims) shape.message(1, Message().number(1, dim));
  return Message().bytes(1, name).message(
      2, Message().message(1, Message().number(1, std::int64_t{type}).message(2, shape)));
}

/// [k, k, in, out] to ONNX's order [out, in, k, k].
std::vector<float> filters_of(const std::vector<float>& from, const Ints& dims) {
  const auto [outputs, inputs, height, width] = std::array{dims[0], dims[1], dims[2], dims[3]};
  std::vector<float> to;
  to.reserve(from.size());
  for (std::int64_t o = 0; o < outputs; ++o) {
    for (std::int64_t i = 0; i < inputs; ++i) {
      for (std::int64_t at = 0; at < height * width; ++at)
        to.push_back(from[static_cast<std::size_t>((at * inputs + i) * outputs + o)]);
    }
  }
  return to;
}

/// The graph under construction. Nodes are named after their output.
class Graph {
 public:
  Graph(const evaluation::Network& network, const std::vector<run::NamedTensor>& tensors)
      : net_(network.net) {
    for (const run::NamedTensor& tensor : tensors) tensors_.emplace(tensor.name, &tensor.values);
    graph_.bytes(2, net_.name);
    names_.resize(net_.values.size());
    names_[0] = preprocess(network.augment);
    for (const model::Operation& operation : net_.operations) {
      names_[operation.output.id] = operation.name;
      std::visit([&](const auto& layer) { append(operation, layer); }, operation.layer);
    }
    const Extent& source = network.augment.source;
    graph_.message(11, value_info("images", kUint8, {source.height, source.width, source.channels}));
    for (const char* output : {"logits", "probabilities"})
      graph_.message(12, value_info(output, kFloat, {net_.classes}));
  }

  const Message& message() const { return graph_; }

 private:
  using Names = std::vector<std::string>;

  std::string node(const char* type, const Names& inputs, const std::string& output,
                   const std::vector<Message>& attributes = {}) {
    Message message;
    for (const std::string& input : inputs) message.bytes(1, input);
    message.bytes(2, output).bytes(3, output).bytes(4, type);
    for (const Message& one : attributes) message.message(5, one);
    graph_.message(1, message);
    return output;
  }

  std::string constant(const std::string& name, const Ints& values) {
    graph_.message(5, tensor<std::int64_t>(kInt64, name, {std::ssize(values)}, values));
    return name;
  }
  std::string constant(const std::string& name, const Ints& dims, std::span<const float> values) {
    graph_.message(5, tensor(kFloat, name, dims, values));
    return name;
  }
  /// A parameter with one value per channel.
  std::string vector(const std::string& name) {
    const std::vector<float>& values = *tensors_.at(name);
    return constant(name, {std::ssize(values)}, values);
  }
  std::string filters(const std::string& name, const Ints& dims) {
    return constant(name, dims, filters_of(*tensors_.at(name), dims));
  }

  std::string in(const model::Operation& operation, std::size_t i = 0) const {
    return names_[operation.inputs[i].id];
  }

  /// As in evaluation: crops the centre and normalizes (data/augment.hpp).
  std::string preprocess(const data::AugmentSpec& spec) {
    std::string x = node("Cast", {"images"}, "float images", {attribute("to", std::int64_t{kFloat})});
    if (spec.output() != spec.source) {
      const std::int64_t top = (spec.source.height - spec.crop_height) / 2;
      const std::int64_t left = (spec.source.width - spec.crop_width) / 2;
      x = node("Slice",
               {x, constant("crop begin", {top, left}),
                constant("crop end", {top + spec.crop_height, left + spec.crop_width}),
                constant("crop axes", {1, 2})},
               "crop");
    }
    const Ints channels{spec.source.channels};
    const auto count = static_cast<std::size_t>(spec.source.channels);
    std::string mean, deviation;
    if (spec.normalize == data::Normalize::dataset) {
      mean = constant("mean", channels, std::span(spec.mean).first(count));
      deviation = constant("deviation", channels, std::span(spec.deviation).first(count));
    } else {
      mean = node("ReduceMean", {x}, "mean", {attribute("axes", Ints{1, 2, 3})});
    }
    x = node("Sub", {x, mean}, "centred");
    if (deviation.empty()) {
      const float least = 1.0f / std::sqrt(static_cast<float>(spec.output().count()));
      const std::string square = node("Mul", {x, x}, "square");
      const std::string variance =
          node("ReduceMean", {square}, "variance", {attribute("axes", Ints{1, 2, 3})});
      deviation = node("Max", {node("Sqrt", {variance}, "root"), constant("least deviation", {1}, {{least}})},
                       "deviation");
    }
    x = node("Div", {x, deviation}, "normalized");
    return node("Transpose", {x}, "image", {attribute("perm", Ints{0, 3, 1, 2})});
  }

  static Message pads(const model::Padding& rows, const model::Padding& columns) {
    return attribute("pads", Ints{rows.before, columns.before, rows.after, columns.after});
  }
  static Message square(const char* name, std::int64_t size) { return attribute(name, Ints{size, size}); }

  void append(const model::Operation& operation, const model::Conv2d& layer) {
    const Extent& x = net_.extent(operation.inputs[0]);
    Names inputs{in(operation), filters(layer.name + "/weights",
                                        {layer.out_channels, x.channels, layer.kernel, layer.kernel})};
    if (layer.with_bias) inputs.push_back(vector(layer.name + "/biases"));
    node("Conv", inputs, operation.name,
         {square("kernel_shape", layer.kernel), square("strides", layer.stride),
          pads(model::padding_of(layer, x.height), model::padding_of(layer, x.width))});
  }
  void append(const model::Operation& operation, const model::Linear& layer) {
    const Extent& x = net_.extent(operation.inputs[0]);
    Names inputs{in(operation),
                 filters(layer.name + "/weights", {layer.outputs, x.channels, x.height, x.width})};
    if (layer.with_bias) inputs.push_back(vector(layer.name + "/biases"));
    node("Conv", inputs, operation.name, {attribute("kernel_shape", Ints{x.height, x.width})});
  }
  void append(const model::Operation& operation, const model::Relu&) {
    node("Relu", {in(operation)}, operation.name);
  }
  /// Operator set 13 has neither SiLU nor GELU.
  void append(const model::Operation& operation, const model::Pointwise& layer) {
    const std::string x = in(operation), &name = operation.name;
    switch (layer.kind) {
      case model::PointwiseKind::silu:
        node("Mul", {x, node("Sigmoid", {x}, name + " sigmoid")}, name);
        return;
      case model::PointwiseKind::gelu: {
        const std::string root = constant(name + " root", {1}, {{std::sqrt(0.5f)}});
        const std::string erf = node("Erf", {node("Mul", {x, root}, name + " argument")}, name + " erf");
        const std::string twice = node("Add", {erf, constant(name + " one", {1}, {{1.0f}})}, name + " twice");
        const std::string share =
            node("Mul", {twice, constant(name + " half", {1}, {{0.5f}})}, name + " share");
        node("Mul", {x, share}, name);
        return;
      }
      case model::PointwiseKind::scale:
        node("Mul", {x, constant(name + " factor", {1}, {{layer.factor}})}, name);
        return;
    }
  }
  void append(const model::Operation& operation, const model::MaxPool& layer) {
    const Extent& x = net_.extent(operation.inputs[0]);
    node("MaxPool", {in(operation)}, operation.name,
         {square("kernel_shape", layer.kernel), square("strides", layer.stride),
          pads(model::padding_of(layer, x.height), model::padding_of(layer, x.width))});
  }
  /// ONNX divides alpha by the window.
  void append(const model::Operation& operation, const model::LocalResponseNorm& layer) {
    const std::int64_t size = 2 * layer.depth_radius + 1;
    node("LRN", {in(operation)}, operation.name,
         {attribute("size", size), attribute("alpha", layer.alpha * static_cast<float>(size)),
          attribute("beta", layer.beta), attribute("bias", layer.bias)});
  }
  void append(const model::Operation& operation, const model::BatchNorm& layer) {
    Names inputs{in(operation)};
    if (layer.with_scale) {
      inputs.push_back(vector(layer.name + "/scale"));
    } else {
      const std::vector<float> ones(static_cast<std::size_t>(net_.extent(operation.output).channels), 1.0f);
      inputs.push_back(constant(layer.name + "/scale", {std::ssize(ones)}, ones));
    }
    for (const char* part : {"/biases", "/mean", "/variance"}) inputs.push_back(vector(layer.name + part));
    node("BatchNormalization", inputs, operation.name, {attribute("epsilon", layer.epsilon)});
  }
  void append(const model::Operation& operation, const model::GlobalAvgPool&) {
    node("GlobalAveragePool", {in(operation)}, operation.name);
  }
  void append(const model::Operation& operation, const model::Shortcut& layer) {
    const std::string& name = operation.name;
    const std::string rows = node(
        "Slice",
        {in(operation), constant(name + " begin", {0, 0}), constant(name + " end", {kToTheEnd, kToTheEnd}),
         constant(name + " axes", {2, 3}), constant(name + " steps", {layer.stride, layer.stride})},
        name + " pixels");
    const std::int64_t more = layer.out_channels - net_.extent(operation.inputs[0]).channels;
    node("Pad", {rows, constant(name + " zeros", {0, 0, 0, 0, 0, more, 0, 0})}, name);
  }
  void append(const model::Operation& operation, const model::Add&) {
    node("Add", {in(operation), in(operation, 1)}, operation.name);
  }
  void append(const model::Operation& operation, const model::SoftmaxCrossEntropy&) {
    node("Softmax", {node("Flatten", {in(operation)}, "logits")}, "probabilities");
  }

  const model::NetSpec& net_;
  std::map<std::string, const std::vector<float>*> tensors_;
  std::vector<std::string> names_;  ///< by Value::id
  Message graph_;
};

}  // namespace

std::string onnx_begin() { return Message().number(1, kIrVersion).bytes(2, "cifar_mpi").text(); }

std::string onnx_model(const evaluation::Network& network, const std::vector<run::NamedTensor>& tensors,
                       const std::vector<std::pair<std::string, std::string>>& properties) {
  Message model;
  model.bytes(3, version());
  model.message(7, Graph(network, tensors).message()).message(8, Message().number(2, kOperatorSet));
  for (const auto& [key, value] : properties) model.message(14, Message().bytes(1, key).bytes(2, value));
  return onnx_begin() + model.text();
}

}  // namespace cifar_mpi::app
