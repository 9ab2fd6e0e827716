#include "lower/network_tasks.hpp"

#include <algorithm>
#include <iterator>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::lower {
namespace {

using engine::Contract;
using engine::Task;

}  // namespace

void move_behind(std::vector<Task>& tasks, std::vector<Task>&& more) {
  tasks.insert(tasks.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

NetworkTasks::NetworkTasks(const engine::TowerKernels& kernels, const LoweredGraph& graph,
                           const engine::ParamLayout& layout, const Blocks& blocks, engine::Arena& arena)
    : kernels_(kernels),
      graph_(graph),
      layout_(layout),
      blocks_(blocks),
      arena_(arena),
      shares_(graph.values.size()),
      grads_(graph.nodes.size()) {
  for (const LoweredValue& value : graph.values) values_.push_back(arena.take(value.format.value.bytes));
  if (auto copy = kernels.kernels->copy_params(blocks.params, layout.floats, arena)) {
    copy_ = copy->at;
    bytes_per_float_ = copy->bytes_per_float;
    prepare.push_back(std::move(copy->task));
  }
  if (blocks.grads != nullptr) place_grads();
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) append_tasks(n);
  for (std::size_t n = graph.nodes.size(); n-- > 0;) move_behind(backward, std::move(grads_[n].before));
}

/// From the loss back: a node's gradient is complete when all its readers, which come after it, have written
/// their shares.
void NetworkTasks::place_grads() {
  const LoweredValue& logits = graph_.values[graph_.logits];
  grad_logits_ = arena_.take(logits.format.grad.bytes);
  shares_[graph_.logits].push_back(grad_logits_);
  for (std::size_t n = graph_.nodes.size(); n-- > 0;) place_grads_of(n);
}

void NetworkTasks::place_grads_of(std::size_t n) {
  const Node& node = graph_.nodes[n];
  const Contract& contract = node.group->contract();
  NodeGrads& grads = grads_[n];
  grads.src.resize(node.inputs.size(), nullptr);
  if (!wants_grad(node.output)) return;
  std::vector<std::byte*>& shares = shares_[node.output];
  if (contract.joins_grads && !graph_.values[node.output].masked && shares.size() > 1) {
    grads.more_dst = shares.back();
    shares.pop_back();
  }
  grads.dst = complete(node.output, contract.name, grads.before);
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    if (!wants_grad(node.inputs[i])) continue;
    std::byte* share = grads.dst;
    if (!contract.hands_grad_on) share = grads.src[i] = arena_.take(contract.src[i].grad.bytes);
    shares_[node.inputs[i]].push_back(share);
  }
  if (contract.grad_on_src && grads.src[0] != nullptr) {
    onto_.emplace_back(grads.src[0], values_[node.inputs[0]]);
  }
  if (contract.grad_on_dst && grads.src[*contract.grad_on_dst] != nullptr) {
    std::byte* const fresh = grads.src[*contract.grad_on_dst];
    onto_.emplace_back(fresh, grads.dst);
    if (grads.more_dst != nullptr) onto_.emplace_back(fresh, grads.more_dst);
  }
}

std::byte* NetworkTasks::complete(std::size_t v, const std::string& name, std::vector<Task>& tasks) {
  const LoweredValue& value = graph_.values[v];
  const engine::Format& format = value.format.grad;
  const std::vector<std::byte*>& shares = shares_[v];
  std::byte* grad = shares.front();
  for (std::size_t i = 1; i < shares.size(); ++i) {
    std::byte* const sum = arena_.take(format.bytes);
    tasks.push_back(kernels_.kernels->add(name + " gradient sum", format, sum, grad, shares[i]));
    onto_.emplace_back(sum, grad);
    onto_.emplace_back(sum, shares[i]);
    grad = sum;
  }
  if (!value.masked) return grad;
  std::byte* const masked = arena_.take(format.bytes);
  tasks.push_back(kernels_.kernels->mask(name + " mask", format, values_[v], grad, masked));
  onto_.emplace_back(masked, grad);
  return masked;
}

bool NetworkTasks::trains_some(const Node& node) const {
  return std::ranges::any_of(node.params, [&](std::size_t p) { return blocks_.trains[p]; });
}

engine::Operands NetworkTasks::operands_of(std::size_t n) const {
  const Node& node = graph_.nodes[n];
  engine::Operands operands;
  operands.training = blocks_.grads != nullptr;
  for (const std::size_t input : node.inputs) operands.src.push_back(values_[input]);
  operands.dst = values_[node.output];
  operands.grad_dst = grads_[n].dst;
  operands.more_grad_dst = grads_[n].more_dst;
  operands.grad_src = grads_[n].src;
  operands.grad_src.resize(node.inputs.size(), nullptr);
  for (const std::size_t p : node.params) {
    const std::size_t at = layout_.entries[p].offset;
    float* grad = nullptr;
    if (at >= layout_.running_begin()) {
      if (operands.training) grad = blocks_.statistics + (at - layout_.running_begin());
    } else if (operands.grad_dst != nullptr && blocks_.trains[p]) {
      grad = blocks_.grads + at;
    } else if (operands.grad_dst != nullptr && trains_some(node)) {
      grad = arena_.take_array<float>(layout_.entries[p].floats);  // scratch: frozen, beside a trained one
    }
    operands.params.push_back(
        {blocks_.params + at, grad, copy_ != nullptr ? copy_ + at * bytes_per_float_ : nullptr});
  }
  operands.statistics_share = blocks_.statistics_share;
  operands.rank_sums = blocks_.rank_sums;
  operands.flops = node.flops;
  operands.mask_src = node.mask_src;
  operands.mask_dst = node.mask_dst;
  return operands;
}

/// Backward tasks follow the sums and masks that they need.
void NetworkTasks::append_tasks(std::size_t n) {
  engine::GroupTasks tasks = graph_.nodes[n].group->tasks(operands_of(n), arena_);
  move_behind(prepare, std::move(tasks.prepare));
  move_behind(forward, std::move(tasks.forward));
  if (blocks_.counts != nullptr && !graph_.nodes[n].layer.empty()) append_observer(graph_.nodes[n]);
  move_behind(grads_[n].before, std::move(tasks.backward));
}

/// Directly after the task that writes the output, so that no lifetime grows.
void NetworkTasks::append_observer(const Node& node) {
  auto task = kernels_.kernels->count("observe " + node.layer, node.extent, node.group->contract().dst.value,
                                      values_[node.output], blocks_.counts + observed_++, arena_);
  if (!task) return;
  task->observer = true;
  forward.push_back(std::move(*task));
}

}  // namespace cifar_mpi::lower
