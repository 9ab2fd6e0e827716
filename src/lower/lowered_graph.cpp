#include "lower/lowered_graph.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::lower {
namespace {

using engine::Chain;
using engine::Contract;
using engine::ReluMask;
using engine::ValueFormat;

class Lowering {
 public:
  Lowering(const engine::TowerKernels& kernels, const engine::TowerSpec& spec)
      : kernels_(kernels),
        spec_(spec),
        net_(*spec.net),
        readers_(model::readers_of(net_)),
        wants_grad_(model::wants_gradient(net_)),
        taken_(net_.operations.size(), false),
        first_(net_.values.size(), kNowhere) {
    first_[0] = add_value(kernels.ends->images(), 0);
  }

  LoweredGraph run() {
    const std::size_t loss = net_.operations.size() - 1;
    for (std::size_t i = 0; i < loss; ++i) {
      if (!taken_[i]) add_group(i);
    }
    graph_.logits =
        in_format(net_.logits(), kernels_.ends->logits(graph_.values[first_[net_.logits().id]].format));
    for (std::size_t v = 0; v < graph_.values.size(); ++v) {
      if (producer_of(v) != nullptr && producer_of(v)->group->contract().relu_at_end) place_mask(v);
    }
    return std::move(graph_);
  }

 private:
  static constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);

  /// A chain and its inputs, as Chain has them, among the values of the network.
  struct Match {
    Chain chain;
    std::vector<model::Value> inputs;
    std::vector<std::size_t> inputs_up_to;  ///< by operation: inputs of those up to it
  };

  /// The operations from `first` on, each the only reader of the one before. They are marked as taken, so
  /// that the groups of their other inputs, which come first, do not use them.
  Match match_from(std::size_t first) {
    Match match;
    match.chain.net = &net_;
    std::optional<model::Value> before;
    for (std::optional<std::size_t> next = first; next; next = reader_of(*before)) {
      const model::Operation& operation = net_.operations[*next];
      taken_[*next] = true;
      match.chain.operations.push_back(*next);
      for (const model::Value input : operation.inputs) {
        if (!before || !(input == *before)) match.inputs.push_back(input);
      }
      match.inputs_up_to.push_back(match.inputs.size());
      before = operation.output;
    }
    for (const model::Value input : match.inputs) {
      make(input);
      match.chain.inputs.push_back(graph_.values[first_[input.id]].format);
      match.chain.wants_grad.push_back(wants_grad_[input.id]);
    }
    return match;
  }

  /// The only operation that reads `value`, if a chain may continue with it.
  std::optional<std::size_t> reader_of(model::Value value) const {
    const auto& readers = readers_[value.id];
    if (readers.size() != 1 || taken_[readers.front()]) return std::nullopt;
    if (readers.front() + 1 == net_.operations.size()) return std::nullopt;  // no kernel computes the loss
    return readers.front();
  }

  /// Adds the groups that compute `value`, unless it exists. Their chains end at it, because its readers are taken.
  void make(model::Value value) {
    if (first_[value.id] != kNowhere) return;
    const auto maker = std::ranges::find(net_.operations, value, &model::Operation::output);
    for (const model::Value input : maker->inputs) make(input);
    const auto operation = static_cast<std::size_t>(maker - net_.operations.begin());
    if (!taken_[operation]) add_group(operation);  // else the group of an earlier operation includes it
  }

  std::size_t add_value(const ValueFormat& format, std::size_t value) {
    graph_.values.push_back({format, value, {}, false});
    return graph_.values.size() - 1;
  }

  void add_node(Node node) {
    for (const std::size_t input : node.inputs) graph_.values[input].readers.push_back(graph_.nodes.size());
    graph_.nodes.push_back(std::move(node));
  }

  void add_group(std::size_t first) {
    const Match match = match_from(first);
    const Chain& chain = match.chain;
    Node node;
    node.group = kernels_.kernels->plan(chain);
    const Contract& contract = node.group->contract();
    if (contract.operations < 1 || contract.operations > chain.size() ||
        contract.src.size() != match.inputs_up_to[contract.operations - 1]) {
      throw std::logic_error(
          concat("the plan of ", contract.name, " does not fit the chain it was asked for"));
    }
    for (std::size_t i = contract.operations; i < chain.size(); ++i) taken_[chain.operations[i]] = false;
    for (std::size_t i = 0; i < contract.src.size(); ++i) {
      node.inputs.push_back(in_format(match.inputs[i], contract.src[i]));
    }
    for (std::size_t i = 0; i < contract.operations; ++i) {
      const std::size_t operation = chain.operations[i];
      for (const std::size_t p : model::params_of(*spec_.params, operation)) node.params.push_back(p);
      node.flops += spec_.batch * net_.operations[operation].forward.in_image;
    }
    if (contract.masters.size() != node.params.size()) {
      throw std::logic_error(concat("the plan of ", contract.name, " has ", contract.masters.size(),
                                    " parameters, its layers have ", node.params.size()));
    }
    const model::Value output = chain.operation(contract.operations - 1).output;
    std::size_t last = contract.operations - 1;
    while (last > 0 && chain.as<model::Relu>(last) != nullptr) --last;
    node.layer = chain.operation(last).name;
    node.extent = net_.extent(output);
    node.output = first_[output.id] = add_value(contract.dst, output.id);
    add_node(std::move(node));
  }

  /// The value in this format: itself, or the output of a reorder, one for all readers of that format.
  std::size_t in_format(model::Value value, const ValueFormat& wanted) {
    const std::size_t from = first_[value.id];
    const ValueFormat have = graph_.values[from].format;
    const auto same_grad = [&](const ValueFormat& other) {
      return !wants_grad_[value.id] || other.grad == wanted.grad;
    };
    if (have.value == wanted.value && same_grad(have)) return from;
    const auto key = std::pair{value.id, std::pair{wanted.value.id, wanted.grad.id}};
    if (const auto known = reordered_.find(key); known != reordered_.end()) return known->second;
    Node node;
    node.group = kernels_.kernels->reorder(concat("reorder ", reordered_.size() + 1), net_.extent(value),
                                           have, wanted, wants_grad_[value.id]);
    node.inputs = {from};
    node.output = add_value(wanted, value.id);
    reordered_[key] = node.output;
    add_node(std::move(node));
    return reordered_[key];
  }

  Node* producer_of(std::size_t value) {
    const auto it = std::ranges::find(graph_.nodes, value, &Node::output);
    return it == graph_.nodes.end() ? nullptr : &*it;
  }

  /// The producer may not change a gradient that two operations read.
  bool grad_is_shared(const LoweredValue& value) const {
    return std::ranges::any_of(value.readers, [&](std::size_t reader) {
      return graph_.nodes[reader].group->contract().hands_grad_on && graph_.nodes[reader].inputs.size() > 1;
    });
  }

  void place_mask(std::size_t v) {
    LoweredValue& value = graph_.values[v];
    if (!wants_grad_[value.of]) return;
    if (value.readers.size() == 1) {
      Node& reader = graph_.nodes[value.readers.front()];
      const ReluMask mask = reader.group->contract().mask_src;
      if (mask == ReluMask::takes) {
        reader.mask_src = true;
        return;
      }
      if (mask == ReluMask::passes) {
        place_mask(reader.output);
        return;
      }
    }
    Node* const producer = producer_of(v);
    if (producer->group->contract().can_mask_dst && !grad_is_shared(value)) {
      producer->mask_dst = true;
    } else {
      value.masked = true;
    }
  }

  const engine::TowerKernels& kernels_;
  const engine::TowerSpec& spec_;
  const model::NetSpec& net_;
  std::vector<std::vector<std::size_t>> readers_;  ///< by value of the network
  std::vector<bool> wants_grad_;                   ///< by value of the network
  std::vector<bool> taken_;                        ///< by operation
  std::vector<std::size_t>
      first_;  ///< by value of the network: the lowered value as it was made, or kNowhere
  std::map<std::pair<std::size_t, std::pair<int, int>>, std::size_t> reordered_;
  LoweredGraph graph_;
};

}  // namespace

LoweredGraph lower_graph(const engine::TowerKernels& kernels, const engine::TowerSpec& spec) {
  return Lowering(kernels, spec).run();
}

}  // namespace cifar_mpi::lower
