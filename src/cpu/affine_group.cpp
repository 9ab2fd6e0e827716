#include "cpu/affine_group.hpp"

#include <algorithm>
#include <utility>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::cpu {

using engine::Arena;
using engine::Operands;
using engine::Task;

AffineGroup::AffineGroup(Planning& planning, std::string name, Affine affine, Desc logical_weights)
    : PlannedGroup(planning), affine_(std::move(affine)), logical_weights_(std::move(logical_weights)) {
  contract_.name = name;
  contract_.operations = affine_.relu ? 2 : 1;
  contract_.relu_at_end = affine_.relu;
  contract_.masters = {affine_.weight_floats()};
  planning.weights[name] = {affine_.master};
  if (affine_.has_bias()) contract_.masters.push_back(affine_.bias_floats());
  // The number of pieces determines the order in which gradients are added.
  std::string remark;
  if (affine_.pieces > 1)
    remark = concat(", ", planning.batch / affine_.pieces, " samples ",
                    affine_.concurrent > 1 ? "on each thread" : "at a time");
  planning.note(name + " forward", affine_.kernels.forward, remark);
  if (affine_.own_gradient) {
    planning.text += concat(name, " weight gradient: own kernel, AMX", remark, '\n');
  } else {
    planning.note(name + " weight gradient", affine_.kernels.weight_gradient, remark);
  }
  if (affine_.wants_grad_src) {
    planning.note(name + " data gradient", affine_.kernels.data_gradient,
                  affine_.is_rotated() ? ", turned" : "");
  }
  for (const WeightCopy* copy : {&affine_.forward_weights, &affine_.backward_weights}) {
    if (copy->rotation) planning.note(name + " turn", copy->rotation->unpack);
    if (copy->reorder) planning.note(name + " prepare", *copy->reorder);
  }
}

const void* AffineGroup::prepare_copy(const std::string& task_name, const WeightCopy& copy, const float* from,
                                      Arena& arena, std::vector<Task>& tasks) const {
  if (!copy.reorder) return from;
  std::size_t scratch = copy.reorder->scratch_bytes();
  if (copy.rotation) scratch = std::max(scratch, copy.rotation->unpack.scratch_bytes());
  std::byte* const taps = copy.rotation ? arena.take(copy.rotation->taps.get_size()) : nullptr;
  std::byte* const weights = arena.take(copy.desc.get_size());
  for (Task& task : prepare_tasks(task_name, planning_.dnnl, affine_.master, copy, from, taps, weights,
                                  arena.take(scratch))) {
    tasks.push_back(std::move(task));
  }
  return weights;
}

AffineGroup::Weights AffineGroup::prepare(const Operands& operands, Arena& arena,
                                          std::vector<Task>& tasks) const {
  Weights weights;
  const float* const from = weights_of(operands);
  weights.forward = prepare_copy(name() + " prepare forward", affine_.forward_weights, from, arena, tasks);
  if (operands.grad_src[0] == nullptr) return weights;
  weights.backward = affine_.shares_weights() ? weights.forward
                                              : prepare_copy(name() + " prepare backward",
                                                             affine_.backward_weights, from, arena, tasks);
  return weights;
}

engine::GroupTasks AffineGroup::tasks(const Operands& operands, Arena& arena) const {
  engine::GroupTasks tasks;
  const Weights weights = prepare(operands, arena, tasks.prepare);
  AffineMemory memory{operands.src[0],      operands.dst, operands.grad_dst,
                      operands.grad_src[0], nullptr,      nullptr};
  memory.scratch = arena.take(affine_.scratch_bytes(affine_.kernels.forward));
  tasks.forward.push_back(plan_affine_forward(name() + " forward", planning_.dnnl, affine_, memory,
                                              weights.forward, biases_of(operands)));
  if (operands.params[0].grad != nullptr) {
    if (affine_.pieces > 1) memory.partial = arena.take(affine_.partial_bytes());
    memory.scratch = arena.take(affine_.gradient_scratch_bytes());
    tasks.backward.push_back(plan_weight_gradient(name() + " weight gradient", planning_.dnnl, affine_,
                                                  memory, operands.params[0].grad, grad_biases_of(operands)));
  }
  if (operands.grad_src[0] != nullptr) {
    memory.scratch = arena.take(affine_.scratch_bytes(affine_.kernels.data_gradient));
    tasks.backward.push_back(
        plan_data_gradient(name() + " data gradient", planning_.dnnl, affine_, memory, weights.backward));
  }
  for (auto* const list : {&tasks.forward, &tasks.backward}) {
    for (Task& task : *list) task.cost.flops = operands.flops;
  }
  return tasks;
}

void AffineGroup::to_logical(std::size_t part, std::span<const float> physical,
                             std::span<float> values) const {
  reorder_now(planning_.dnnl, master(part), physical.data(), logical(part), values.data());
}

void AffineGroup::from_logical(std::size_t part, std::span<const float> values,
                               std::span<float> physical) const {
  std::ranges::fill(physical, 0.0f);
  reorder_now(planning_.dnnl, logical(part), values.data(), master(part), physical.data());
}

}  // namespace cifar_mpi::cpu
