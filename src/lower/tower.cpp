#include "cifar_mpi/lower/tower.hpp"

#include <numeric>
#include <stdexcept>
#include <utility>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "lower/lowered_graph.hpp"
#include "lower/memory_plan.hpp"
#include "lower/network_tasks.hpp"

namespace cifar_mpi::lower {
namespace {

using engine::Arena;
using engine::Task;

/// The tasks of a training step in order.
std::vector<Task> train_recipe(const engine::Ends& ends, const engine::TrainBinding& binding,
                               NetworkTasks& network, std::uint8_t* labels) {
  std::vector<Task> tasks{ends.control(binding)};
  move_behind(tasks, std::move(network.prepare));
  tasks.push_back(ends.train_input(binding, network.image(), labels));
  if (binding.part == 0 && binding.kept > 0) {
    if (auto keep = ends.keep_images(network.image(), binding.kept, binding.kept_images)) {
      keep->observer = true;
      tasks.push_back(std::move(*keep));
    }
  }
  move_behind(tasks, std::move(network.forward));
  tasks.push_back(ends.train_loss(binding, network.logits(), labels, network.grad_logits()));
  move_behind(tasks, std::move(network.backward));
  const bool last = binding.part + 1 == binding.parts;
  if (last && binding.facts != nullptr) tasks.push_back(ends.compute_time(binding.facts));
  return tasks;
}

std::vector<Task> evaluate_recipe(const engine::Ends& ends, const engine::EvaluateBinding& binding,
                                  NetworkTasks& network, std::uint8_t* labels) {
  std::vector<Task> tasks = std::move(network.prepare);
  tasks.push_back(ends.evaluate_input(binding, network.image(), labels));
  move_behind(tasks, std::move(network.forward));
  tasks.push_back(ends.evaluate_loss(binding, network.logits(), labels));
  return tasks;
}

/// `build` makes the tasks of a program in the memory of an arena, and returns which pieces may share bytes.
/// It is called twice: see MemoryPlan.
template <class Build>
std::vector<Task> in_planned_memory(Arena& arena, const Build& build) {
  ImaginaryArena imaginary;
  std::vector<std::pair<std::byte*, std::byte*>> onto;
  const std::vector<Task> imagined = build(imaginary.arena(), onto);
  const MemoryPlan plan = plan_memory(imaginary, imagined, onto);
  std::byte* const block = arena.take(plan.bytes);
  std::size_t next = 0;
  Arena places([&](std::size_t size) -> Buffer { return {block + plan.offsets.at(next++), size, {}}; });
  std::vector<Task> placed = build(places, onto);
  require_same_dataflow(imagined, placed);
  return placed;
}

}  // namespace

Tower::Tower(engine::Backend& backend, const engine::TowerSpec& spec) : Tower(backend.plan(spec), spec) {}

Tower::Tower(engine::TowerKernels kernels, const engine::TowerSpec& spec)
    : spec_(spec), kernels_(std::move(kernels)) {
  graph_ = std::make_unique<LoweredGraph>(lower_graph(kernels_, spec_));
  lay_out();
  plan_text_ = kernels_.kernels->finalize();
}

void Tower::require_same_memory(const Tower& other) const {
  for (std::size_t p = 0; p < homes_.size(); ++p) {
    std::vector<float> order(static_cast<std::size_t>(spec_.params->at(p).shape.count()));
    std::iota(order.begin(), order.end(), 1.0f);  // exact up to 2^24
    std::vector<float> mine(layout_.entries[p].floats), its(other.layout_.entries.at(p).floats);
    from_logical(p, order, mine);
    other.from_logical(p, order, its);
    if (mine == its) continue;
    throw std::logic_error(concat("the values of ", (*spec_.params)[p].name,
                                  " lie in memory in another order for ", to_string(input()), " than for ",
                                  to_string(other.input())));
  }
}

Tower::~Tower() = default;

/// The parameters in the order of the table, which is the order in which backward finishes their gradients;
/// those that are not trained come last.
void Tower::lay_out() {
  homes_.resize(spec_.params->size(), {graph_->nodes.size(), 0});
  for (std::size_t n = 0; n < graph_->nodes.size(); ++n) {
    const std::vector<std::size_t>& params = graph_->nodes[n].params;
    for (std::size_t part = 0; part < params.size(); ++part) homes_[params[part]] = {n, part};
  }
  for (std::size_t p = 0; p < homes_.size(); ++p) {
    const auto [node, part] = homes_[p];
    if (node == graph_->nodes.size()) {
      throw std::logic_error(concat("no group has parameter ", (*spec_.params)[p].name));
    }
    append(layout_, graph_->nodes[node].group->contract().masters[part], (*spec_.params)[p].role);
  }
}

void Tower::check_sizes(std::size_t p, std::size_t physical, std::size_t logical) const {
  const auto wanted = static_cast<std::size_t>(spec_.params->at(p).shape.count());
  if (physical == layout_.entries[p].floats && logical == wanted) return;
  throw std::logic_error(concat("parameter ", p, " has ", layout_.entries[p].floats, " floats in memory and ",
                                wanted, " in logical order, called with ", physical, " and ", logical));
}

void Tower::to_logical(std::size_t p, std::span<const float> physical, std::span<float> logical) const {
  check_sizes(p, physical.size(), logical.size());
  graph_->nodes[homes_[p].node].group->to_logical(homes_[p].part, physical, logical);
}

void Tower::from_logical(std::size_t p, std::span<const float> logical, std::span<float> physical) const {
  check_sizes(p, physical.size(), logical.size());
  graph_->nodes[homes_[p].node].group->from_logical(homes_[p].part, logical, physical);
}

std::vector<std::string> Tower::observed() const {
  std::vector<std::string> layers;
  for (const Node& node : graph_->nodes) {
    if (!node.layer.empty()) layers.push_back(node.layer);
  }
  return layers;
}

/// Finds padding as the places that ones do not reach.
std::vector<engine::ValueRun> Tower::values_of(std::size_t p) const {
  const std::vector<float> ones(static_cast<std::size_t>(spec_.params->at(p).shape.count()), 1.0f);
  std::vector<float> physical(layout_.entries[p].floats);
  from_logical(p, ones, physical);
  return engine::runs_where(physical.size(), [&](std::size_t i) { return physical[i] != 0.0f; });
}

/// One value has no variance.
void Tower::require_statistics(int ranks) const {
  const model::NetSpec& net = *spec_.net;
  for (std::size_t i = 0; i < net.operations.size(); ++i) {
    const Extent& extent = net.input_of(i);
    if (!std::holds_alternative<model::BatchNorm>(net.operations[i].layer)) continue;
    if (spec_.batch * ranks > 1 || extent.height * extent.width > 1) continue;
    throw Error(ErrorKind::usage, "model ", net.name, ": layer ", i + 1, " (", net.operations[i].name,
                ") normalizes over a batch of 1 with an input of ", to_string(extent),
                ", one value per channel; it needs at least 2 samples in each batch of a rank and in each "
                "micro-shard");
  }
}

std::vector<Task> Tower::train_tasks(const engine::TrainBinding& binding, Arena& arena) const {
  require_statistics(binding.rank_sums.ranks);
  const engine::ControlLayout& control = binding.control_layout;
  if (control.statistics_floats != layout_.running_floats) {
    throw std::logic_error("the control block has no space for the statistics of the batch");
  }
  std::vector<bool> trains;
  for (const model::Param& param : *spec_.params) trains.push_back(param.trains(binding.after));
  const Blocks blocks{binding.params,
                      binding.grads,
                      binding.control + control.statistics(),
                      binding.statistics_share,
                      binding.rank_sums,
                      binding.part == 0 ? binding.activations : nullptr,
                      std::move(trains),
                      model::wants_gradient(*spec_.net, binding.after)};
  return in_planned_memory(arena, [&](Arena& memory, auto& onto) {
    NetworkTasks network(kernels_, *graph_, layout_, blocks, memory);
    onto = network.onto();
    auto* const labels = memory.take_array<std::uint8_t>(static_cast<std::size_t>(spec_.batch));
    return train_recipe(*kernels_.ends, binding, network, labels);
  });
}

std::vector<Task> Tower::evaluate_tasks(const engine::EvaluateBinding& binding, Arena& arena) const {
  return in_planned_memory(arena, [&](Arena& memory, auto& onto) {
    NetworkTasks network(kernels_, *graph_, layout_, {binding.params}, memory);
    onto = network.onto();
    auto* const labels = memory.take_array<std::uint8_t>(static_cast<std::size_t>(spec_.batch));
    return evaluate_recipe(*kernels_.ends, binding, network, labels);
  });
}

}  // namespace cifar_mpi::lower
