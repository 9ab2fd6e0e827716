#include <cctype>
#include <cstdint>
#include <set>
#include <variant>
#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "report/protobuf.hpp"
#include "report/tensorboard.hpp"

namespace cifar_mpi::report {
namespace {

constexpr std::int64_t kAnyBatch = -1;

class Graph {
 public:
  /// Adds a node and returns its name, which may differ from the requested one.
  std::string add(const std::string& name, std::string_view op, const std::vector<std::string>& inputs,
                  const std::vector<std::int64_t>& shape) {
    const std::string unique = unique_name(name);
    Message extents, list, value, node;
    for (const std::int64_t extent : shape) extents.message(2, Message().number(1, extent));
    list.message(7, extents);
    value.message(1, list);
    node.bytes(1, unique).bytes(2, op);
    for (const std::string& input : inputs) node.bytes(3, input);
    node.entry(5, "_output_shapes", value);
    graph_.message(1, node);
    return unique;
  }

  const std::string& text() const { return graph_.text(); }

 private:
  std::string unique_name(std::string name) {
    for (char& c : name) {
      if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '/' && c != '.') c = '_';
    }
    std::string unique = name;
    for (int n = 1; !names_.insert(unique).second; ++n) unique = concat(name, '_', n);
    return unique;
  }

  Message graph_;
  std::set<std::string> names_;
};

std::vector<std::int64_t> shape_of(const Extent& extent) {
  return {kAnyBatch, extent.height, extent.width, extent.channels};
}

}  // namespace

std::string graph_def(const model::NetSpec& net) {
  Graph graph;
  std::vector<std::string> producers(net.values.size());  // by Value::id
  producers.front() = graph.add("image", "Placeholder", {}, shape_of(net.input));
  for (const model::Operation& operation : net.operations) {
    std::vector<std::string> inputs;
    for (const model::Value input : operation.inputs) inputs.push_back(producers[input.id]);
    for (const model::Param& param : operation.params) {
      inputs.push_back(graph.add(param.name, "Variable", {},
                                 std::vector<std::int64_t>(param.shape.begin(), param.shape.end())));
    }
    std::vector<std::int64_t> shape = shape_of(net.extent(operation.output));
    if (std::holds_alternative<model::SoftmaxCrossEntropy>(operation.layer)) {
      inputs.push_back(graph.add("labels", "Placeholder", {}, {kAnyBatch}));
      shape.clear();  // the mean over all images
    }
    const std::string name =
        operation.params.empty() ? operation.name : concat(operation.name, '/', operation.kind);
    producers[operation.output.id] = graph.add(name, operation.kind, inputs, shape);
  }
  return graph.text();
}

}  // namespace cifar_mpi::report
