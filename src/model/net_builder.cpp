#include "cifar_mpi/model/net_builder.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "model/layer_facts.hpp"

namespace cifar_mpi::model {
namespace {

/// Label 255 means "leave this sample out", so it cannot be a class.
constexpr int kMostClasses = 255;

LayerFacts checked_facts(const NetSpec& net, const Layer& layer, const std::vector<Value>& inputs) {
  std::vector<Extent> extents;
  for (const Value input : inputs) extents.push_back(net.extent(input));
  LayerFacts facts = facts_of(layer, extents, net.classes);
  if (!facts.params.empty() && name_of(layer).empty()) throw Misfit{"needs a name for its parameters"};
  const double values = 1.0 * facts.out.height * facts.out.width * facts.out.channels;
  if (values > std::numeric_limits<int>::max()) {
    throw Misfit{concat("gives too many values: ", to_string(facts.out))};
  }
  return facts;
}

}  // namespace

NetBuilder::NetBuilder(std::string name, Extent image, int classes)
    : net_{std::move(name), image, classes, {}, {image}} {
  if (image.height < 1 || image.width < 1 || image.channels < 1) {
    throw Error(ErrorKind::usage, "model ", net_.name, " needs an input of at least 1x1x1, found ",
                to_string(image));
  }
  if (classes < 2 || classes > kMostClasses) {
    throw Error(ErrorKind::usage, "model ", net_.name, " needs 2 to ", kMostClasses, " classes, found ",
                classes);
  }
}

Value NetBuilder::append(Layer layer, std::vector<Value> inputs) {
  const std::size_t index = net_.operations.size();
  std::string name = name_of(layer);
  LayerFacts facts;
  try {
    facts = checked_facts(net_, layer, inputs);
    if (!facts.params.empty() && !names_.insert(name).second) {
      throw Misfit{"has the name of an earlier layer; parameters are found by name"};
    }
  } catch (const Misfit& misfit) {
    throw Error(ErrorKind::usage, "model ", net_.name, ": layer ", index + 1, " (", name, ") ", misfit.text);
  }
  if (std::holds_alternative<Relu>(layer) || std::holds_alternative<Pointwise>(layer))
    name += concat(' ', index);
  for (Param& param : facts.params) param.operation = index;
  const Value output{net_.values.size()};
  net_.operations.push_back({std::move(name), std::move(layer), std::move(inputs), output, facts.kind,
                             facts.forward, std::move(facts.params)});
  net_.values.push_back(facts.out);
  return output;
}

Value NetBuilder::global_max_pool(Value x, std::string name) {
  const int side = std::max(net_.extent(x).height, net_.extent(x).width);
  return max_pool(x, {.name = std::move(name), .kernel = side, .stride = side});
}

NetSpec NetBuilder::softmax_cross_entropy(Value logits) {
  append(SoftmaxCrossEntropy{}, {logits});
  const auto readers = readers_of(net_);
  for (const Operation& operation : net_.operations) {
    if (&operation == &net_.operations.back() || !readers[operation.output.id].empty()) continue;
    throw Error(ErrorKind::usage, "model ", net_.name, ": no operation reads the output of ", operation.name);
  }
  return std::move(net_);
}

}  // namespace cifar_mpi::model
