#include "cpu/assembly.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <variant>

#include "cpu/affine.hpp"
#include "cpu/norm.hpp"
#include "cpu/relu.hpp"

namespace cifar_mpi::cpu {
namespace {

using engine::Task;

/// Sizes of two buffers that a chain of tensors uses by turns.
using TwoSizes = std::array<std::size_t, 2>;

}  // namespace

Assembly::Assembly(const Dnnl& dnnl, const NetPlan& plan, const engine::ParamLayout& layout,
                   engine::Precision precision, Purpose purpose, engine::Arena& arena)
    : dnnl_(dnnl),
      plan_(plan),
      layout_(layout),
      precision_(precision),
      purpose_(purpose),
      arena_(arena),
      scratch_(arena.take(plan.scratch_bytes)),
      values_(plan.edges.size()),
      grads_(plan.edges.size()),
      extras_(plan.stages.size()) {
  place_extras();
  if (purpose == Purpose::evaluate) {
    place_evaluation_values();
  } else {
    place_training_values();
    place_grads();
  }
}

void Assembly::place_extras() {
  const bool training = purpose_ == Purpose::train;
  for (std::size_t s = 0; s < extras_.size(); ++s) {
    const Stage::Work& work = plan_.stages[s].work;
    const auto* const pool = std::get_if<Pool>(&work);
    const auto* const fused = std::get_if<ConvPool>(&work);
    if (pool != nullptr && training) extras_[s].workspace = arena_.take(pool->workspace.get_size());
    const auto* const affine = std::get_if<Affine>(&work);
    if (affine != nullptr && affine->pieces > 1 && training)
      extras_[s].partial = arena_.take(affine->partial_bytes());
    if (fused == nullptr) continue;
    extras_[s].piece = arena_.take(fused->conv.dst.get_size());
    if (!training) continue;
    const auto pieces = static_cast<std::size_t>(fused->conv.pieces);
    extras_[s].workspace = arena_.take(pieces * fused->pool.workspace.get_size());
    extras_[s].partial = arena_.take(fused->conv.partial_bytes());
  }
}

void Assembly::place_training_values() {
  for (std::size_t e = 0; e < values_.size(); ++e) values_[e] = arena_.take(plan_.edges[e].value.get_size());
}

void Assembly::place_evaluation_values() {
  TwoSizes sizes{};
  for (std::size_t e = 0; e < values_.size(); ++e) {
    sizes[e % 2] = std::max(sizes[e % 2], plan_.edges[e].value.get_size());
  }
  const std::array<std::byte*, 2> buffers{arena_.take(sizes[0]), arena_.take(sizes[1])};
  for (std::size_t e = 0; e < values_.size(); ++e) values_[e] = buffers[e % 2];
}

/// Whether the gradient may lie where the value lies: nobody reads the value again, or only the normalization
/// that replaces it pixel by pixel.
bool Assembly::value_is_free(std::size_t edge) const {
  if (edge == plan_.stages.size() || plan_.edges[edge].masked) return false;
  const auto& reader = plan_.stages[edge].work;
  return std::holds_alternative<Pool>(reader) || std::holds_alternative<Reformat>(reader) ||
         std::holds_alternative<Norm>(reader);
}

void Assembly::place_grads() {
  constexpr int kOnValue = -1, kAsNext = -2;
  std::vector<int> places(grads_.size(), kOnValue);
  TwoSizes sizes{};
  int turn = 0;
  for (std::size_t e = grads_.size(); e-- > 0 && plan_.edges[e].wants_grad;) {
    const bool rectified = e < plan_.stages.size() && std::holds_alternative<Rectify>(plan_.stages[e].work);
    if (rectified) places[e] = kAsNext;
    if (rectified || value_is_free(e)) continue;
    places[e] = turn;
    const auto t = static_cast<std::size_t>(turn);
    sizes[t] = std::max(sizes[t], plan_.edges[e].grad.get_size());
    turn = 1 - turn;
  }
  const std::array<std::byte*, 2> buffers{arena_.take(sizes[0]), arena_.take(sizes[1])};
  for (std::size_t e = grads_.size(); e-- > 0 && plan_.edges[e].wants_grad;) {
    if (places[e] >= 0) {
      grads_[e] = buffers[static_cast<std::size_t>(places[e])];
    } else {
      grads_[e] = places[e] == kAsNext ? grads_[e + 1] : values_[e];
    }
  }
}

const void* Assembly::prepare_copy(const std::string& task_name, const Affine& affine, const WeightCopy& copy,
                                   const float* master, std::vector<Task>& tasks) {
  if (!copy.reorder) return master;
  std::byte* const taps = copy.turning ? arena_.take(copy.turning->taps.get_size()) : nullptr;
  std::byte* const weights = arena_.take(copy.desc.get_size());
  for (Task& task : prepare_tasks(task_name, dnnl_, affine.master, copy, master, taps, weights, scratch_)) {
    tasks.push_back(std::move(task));
  }
  return weights;
}

void Assembly::prepare(const float* params, std::vector<Task>& tasks) {
  for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
    const Affine* const affine = affine_of(plan_.stages[s]);
    if (affine == nullptr) continue;
    const float* const master = params + layout_.entries[affine->weights].offset;
    Extras& extras = extras_[s];
    extras.forward_weights =
        prepare_copy(name(s) + " prepare forward", *affine, affine->forward_weights, master, tasks);
    if (purpose_ == Purpose::evaluate || !affine->wants_grad_src) continue;
    extras.backward_weights =
        affine->shares_weights()
            ? extras.forward_weights
            : prepare_copy(name(s) + " prepare backward", *affine, affine->backward_weights, master, tasks);
  }
}

void Assembly::forward(const float* params, std::vector<Task>& tasks) const {
  for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
    tasks.push_back(
        std::visit([&](const auto& work) { return forward_task(s, work, params); }, plan_.stages[s].work));
    if (const Affine* const affine = affine_of(plan_.stages[s])) tasks.back().demand.flops = affine->flops;
  }
}

void Assembly::backward(float* grads, std::vector<Task>& tasks) const {
  for (std::size_t s = plan_.stages.size(); s-- > 0;) {
    if (!plan_.edges[s + 1].wants_grad) break;
    if (plan_.edges[s + 1].masked) tasks.push_back(mask_task(s + 1));
    const std::size_t begin = tasks.size();
    std::visit([&](const auto& work) { backward_tasks(s, work, grads, tasks); }, plan_.stages[s].work);
    const Affine* const affine = affine_of(plan_.stages[s]);
    for (std::size_t t = begin; affine != nullptr && t < tasks.size(); ++t) {
      tasks[t].demand.flops = affine->flops;
    }
  }
}

Task Assembly::forward_task(std::size_t s, const Affine& affine, const float* params) const {
  const float* const biases = params + layout_.entries[affine.biases].offset;
  return plan_affine_forward(name(s) + " forward", dnnl_, affine, affine_memory(s),
                             extras_[s].forward_weights, biases);
}

Task Assembly::forward_task(std::size_t s, const Pool& pool, const float*) const {
  const bool training = purpose_ == Purpose::train;
  std::vector<Operand> operands{reads(DNNL_ARG_SRC, plan_.edges[s].value, values_[s]),
                                writes(DNNL_ARG_DST, plan_.edges[s + 1].value, values_[s + 1])};
  if (training) operands.push_back(writes(DNNL_ARG_WORKSPACE, pool.workspace, extras_[s].workspace));
  return kernel_task(name(s) + " forward", dnnl_, training ? pool.kernels.forward : pool.kernels.inference,
                     std::move(operands), scratch_);
}

AffineMemory Assembly::affine_memory(std::size_t s) const {
  return {values_[s], values_[s + 1], grads_[s + 1], grads_[s], extras_[s].partial, scratch_};
}

ConvPoolMemory Assembly::conv_pool_memory(std::size_t s) const {
  const Extras& extras = extras_[s];
  return {values_[s],   values_[s + 1], grads_[s + 1], extras.workspace,
          extras.piece, extras.partial, scratch_};
}

Task Assembly::forward_task(std::size_t s, const ConvPool& fused, const float* params) const {
  return plan_conv_pool_forward(name(s) + " forward", dnnl_, fused, conv_pool_memory(s),
                                extras_[s].forward_weights,
                                params + layout_.entries[fused.conv.biases].offset);
}

Task Assembly::forward_task(std::size_t s, const Norm& norm, const float*) const {
  return plan_lrn_forward(name(s) + " forward", norm.layer, norm.shape, precision_, values_[s],
                          values_[s + 1]);
}

Task Assembly::forward_task(std::size_t s, const Rectify&, const float*) const {
  return plan_relu_forward(name(s) + " forward", values_in(plan_.edges[s].value), precision_, values_[s],
                           values_[s + 1]);
}

Task Assembly::forward_task(std::size_t s, const Reformat& reformat, const float*) const {
  return kernel_task(name(s) + " forward", dnnl_, reformat.forward,
                     {reads(DNNL_ARG_FROM, plan_.edges[s].value, values_[s]),
                      writes(DNNL_ARG_TO, plan_.edges[s + 1].value, values_[s + 1])},
                     scratch_);
}

void Assembly::backward_tasks(std::size_t s, const Affine& affine, float* grads,
                              std::vector<Task>& tasks) const {
  const AffineMemory memory = affine_memory(s);
  tasks.push_back(plan_weight_gradient(name(s) + " weight gradient", dnnl_, affine, memory,
                                       grads + layout_.entries[affine.weights].offset,
                                       grads + layout_.entries[affine.biases].offset));
  if (!affine.wants_grad_src) return;
  tasks.push_back(
      plan_data_gradient(name(s) + " data gradient", dnnl_, affine, memory, extras_[s].backward_weights));
}

void Assembly::backward_tasks(std::size_t s, const Pool& pool, float*, std::vector<Task>& tasks) const {
  tasks.push_back(kernel_task(name(s) + " backward", dnnl_, pool.kernels.backward,
                              {reads(DNNL_ARG_DIFF_DST, plan_.edges[s + 1].grad, grads_[s + 1]),
                               reads(DNNL_ARG_WORKSPACE, pool.workspace, extras_[s].workspace),
                               writes(DNNL_ARG_DIFF_SRC, plan_.edges[s].grad, grads_[s])},
                              scratch_));
}

void Assembly::backward_tasks(std::size_t s, const ConvPool& fused, float* grads,
                              std::vector<Task>& tasks) const {
  tasks.push_back(plan_conv_pool_backward(name(s) + " weight gradient", dnnl_, fused, conv_pool_memory(s),
                                          grads + layout_.entries[fused.conv.weights].offset,
                                          grads + layout_.entries[fused.conv.biases].offset));
}

void Assembly::backward_tasks(std::size_t s, const Norm& norm, float*, std::vector<Task>& tasks) const {
  tasks.push_back(plan_lrn_backward(name(s) + " backward", norm.layer, norm.shape, precision_, values_[s],
                                    grads_[s + 1], grads_[s], norm.mask_relu));
}

/// The gradient of the input lies where that of the output lies, and that is masked already.
void Assembly::backward_tasks(std::size_t, const Rectify&, float*, std::vector<Task>&) const {}

void Assembly::backward_tasks(std::size_t s, const Reformat& reformat, float*,
                              std::vector<Task>& tasks) const {
  tasks.push_back(kernel_task(name(s) + " backward", dnnl_, *reformat.backward,
                              {reads(DNNL_ARG_FROM, plan_.edges[s + 1].grad, grads_[s + 1]),
                               writes(DNNL_ARG_TO, plan_.edges[s].grad, grads_[s])},
                              scratch_));
}

Task Assembly::mask_task(std::size_t edge) const {
  return plan_relu_backward(name(edge - 1) + " mask", values_in(plan_.edges[edge].grad), precision_,
                            values_[edge], grads_[edge]);
}

std::size_t Assembly::values_in(const Desc& desc) const {
  return desc.get_size() / (precision_ == engine::Precision::bf16 ? sizeof(std::uint16_t) : sizeof(float));
}

}  // namespace cifar_mpi::cpu
