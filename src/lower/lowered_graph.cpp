#include "lower/lowered_graph.hpp"

#include <algorithm>
#include <map>
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
        first_(net_.values.size()) {
    add_value(kernels.ends->images(), 0);
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
  /// The operations from `first` on of which each is the only reader of the one before and reads nothing
  /// else.
  Chain chain_from(std::size_t first) const {
    Chain chain;
    chain.net = &net_;
    chain.operations = {first};
    for (const model::Value input : net_.operations[first].inputs) {
      chain.inputs.push_back(graph_.values[first_[input.id]].format);
      chain.wants_grad.push_back(wants_grad_[input.id]);
    }
    while (true) {
      const auto& readers = readers_[net_.operations[chain.operations.back()].output.id];
      if (readers.size() != 1 || net_.operations[readers.front()].inputs.size() != 1) return chain;
      if (readers.front() + 1 == net_.operations.size()) return chain;  // the loss is no kernel's
      chain.operations.push_back(readers.front());
    }
  }

  std::size_t add_value(const ValueFormat& format, std::size_t value) {
    graph_.values.push_back({format, wants_grad_[value], {}, false});
    return graph_.values.size() - 1;
  }

  void add_node(Node node) {
    for (const std::size_t input : node.inputs) graph_.values[input].readers.push_back(graph_.nodes.size());
    graph_.nodes.push_back(std::move(node));
  }

  void add_group(std::size_t first) {
    const Chain chain = chain_from(first);
    Node node;
    node.group = kernels_.kernels->plan(chain);
    const Contract& contract = node.group->contract();
    if (contract.operations < 1 || contract.operations > chain.size() ||
        contract.src.size() != chain.inputs.size()) {
      throw std::logic_error(
          concat("the plan of ", contract.name, " does not fit the chain it was asked for"));
    }
    const std::vector<model::Value>& inputs = net_.operations[first].inputs;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      node.inputs.push_back(in_format(inputs[i], contract.src[i]));
    }
    for (std::size_t i = 0; i < contract.operations; ++i) {
      const std::size_t operation = chain.operations[i];
      taken_[operation] = true;
      for (const std::size_t p : model::params_of(*spec_.params, operation)) node.params.push_back(p);
      node.flops += spec_.batch * net_.operations[operation].forward.in_image;
    }
    if (contract.masters.size() != node.params.size()) {
      throw std::logic_error(concat("the plan of ", contract.name, " has ", contract.masters.size(),
                                    " parameters, its layers have ", node.params.size()));
    }
    const model::Value output = chain.operation(contract.operations - 1).output;
    node.output = first_[output.id] = add_value(contract.dst, output.id);
    add_node(std::move(node));
  }

  /// The value in this format: as it is, or behind a reorder, one for all who want it so.
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
    const auto it = std::find_if(graph_.nodes.begin(), graph_.nodes.end(),
                                 [&](const Node& node) { return node.output == value; });
    return it == graph_.nodes.end() ? nullptr : &*it;
  }

  /// A gradient that is handed on to two is no longer the producer's own to change.
  bool grad_is_shared(const LoweredValue& value) const {
    return std::any_of(value.readers.begin(), value.readers.end(), [&](std::size_t reader) {
      return graph_.nodes[reader].group->contract().hands_grad_on && graph_.nodes[reader].inputs.size() > 1;
    });
  }

  void place_mask(std::size_t v) {
    LoweredValue& value = graph_.values[v];
    if (!value.wants_grad) return;
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
  std::vector<bool> wants_grad_;                   ///< likewise
  std::vector<bool> taken_;                        ///< by operation
  std::vector<std::size_t> first_;  ///< by value of the network: the lowered value as it was made
  std::map<std::pair<std::size_t, std::pair<int, int>>, std::size_t> reordered_;
  LoweredGraph graph_;
};

}  // namespace

LoweredGraph lower_graph(const engine::TowerKernels& kernels, const engine::TowerSpec& spec) {
  return Lowering(kernels, spec).run();
}

}  // namespace cifar_mpi::lower
