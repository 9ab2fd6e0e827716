#include "cpu/conv_pool.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "cpu/affine_group.hpp"
#include "cpu/conv.hpp"
#include "cpu/pieces.hpp"

namespace cifar_mpi::cpu {
namespace {

using engine::Task;
using Tag = dnnl::memory::format_tag;

}  // namespace

std::optional<ConvPool> plan_conv_pool(const Dnnl& dnnl, const model::Conv2d& conv,
                                       const model::MaxPool& pool, const AffinePlace& place, int pieces) {
  Affine affine = plan_conv(dnnl, conv, place);
  affine.pieces = pieces;
  const std::optional<PlannedPool> planned = plan_pool(pool, place.batch, affine.dst, place.out);
  if (!planned) return std::nullopt;
  const Desc dst = activations(place.batch * pieces, planned->pool.out(), place.type, planned->format);
  return ConvPool{std::move(affine), planned->pool, dst};
}

Task plan_conv_pool_forward(const std::string& name, const Dnnl& dnnl, const ConvPool& stage,
                            const ConvPoolMemory& memory, const void* weights, const float* biases) {
  const Affine& conv = stage.conv;
  const Pool& pool = stage.pool;
  std::vector<Task> parts;
  for (int p = 0; p < conv.pieces; ++p) {
    parts.push_back(kernel_task(
        name, dnnl, conv.kernels.forward,
        conv.forward_operands(memory.src + offset_of_piece(conv.src, p), weights, biases, memory.piece),
        memory.scratch));
    const std::size_t pooled = stage.pooled_before(p);
    parts.push_back(plan_pool_forward(name, pool, memory.piece, memory.dst + pooled * pool.value_bytes(),
                                      memory.choices == nullptr ? nullptr : memory.choices + pooled));
  }
  return in_one(name, std::move(parts));
}

Task plan_conv_pool_backward(const std::string& name, const Dnnl& dnnl, const ConvPool& stage,
                             const ConvPoolMemory& memory, float* grad_weights, float* grad_biases) {
  const Affine& conv = stage.conv;
  const PieceSums sums(conv, memory.partial, grad_weights, grad_biases);
  std::vector<Task> parts;
  for (int p = 0; p < conv.pieces; ++p) {
    const std::size_t pooled = stage.pooled_before(p);
    parts.push_back(plan_pool_backward(name, stage.pool, memory.grad_dst + pooled * stage.pool.value_bytes(),
                                       memory.choices + pooled, memory.piece));
    std::vector<Operand> operands = sums.operands(p);
    operands.push_back(reads(DNNL_ARG_SRC, conv.src, memory.src + offset_of_piece(conv.src, p)));
    operands.push_back(reads(DNNL_ARG_DIFF_DST, conv.grad_dst, memory.piece));
    parts.push_back(
        kernel_task(name, dnnl, conv.kernels.weight_gradient, std::move(operands), memory.scratch));
    sums.add(p == 0 ? 0 : 1, parts);
  }
  return in_one(name, std::move(parts));
}

namespace {

class ConvPoolGroup final : public AffineGroup {
 public:
  ConvPoolGroup(Planning& planning, const model::Conv2d& conv, ConvPool stage, const Extent& in)
      : AffineGroup(planning, conv.name, std::move(stage.conv), conv_logical_weights(conv, in)),
        pool_(stage.pool) {
    note_pool(planning, pool_);
    contract_.name = conv.name + " + " + pool_.layer.name;
    ++contract_.operations;
    contract_.src = {planning.formats(activations(planning.batch, in, planning.type, Tag::nchw))};
    contract_.dst = planning.formats(stage.dst);
  }

  engine::GroupTasks tasks(const engine::Operands& operands, engine::Arena& arena) const override {
    const ConvPool stage{affine_, pool_, {}};
    engine::GroupTasks tasks;
    const Weights weights = prepare(operands, arena, tasks.prepare);
    ConvPoolMemory memory;
    memory.src = operands.src[0];
    memory.dst = operands.dst;
    memory.grad_dst = operands.grad_dst;
    memory.piece = arena.take(affine_.dst.get_size());
    if (operands.training) {
      memory.choices = arena.take_array<std::uint8_t>(stage.pooled_before(affine_.pieces));
    }
    memory.scratch = arena.take(scratch_bytes());
    tasks.forward.push_back(plan_conv_pool_forward(name() + " forward", planning_.dnnl, stage, memory,
                                                   weights.forward, biases_of(operands)));
    tasks.forward.back().cost.flops = operands.flops;
    if (!operands.training || operands.params[0].grad == nullptr) return tasks;
    memory.piece = arena.take(affine_.dst.get_size());
    memory.partial = arena.take(affine_.partial_bytes());
    memory.scratch = arena.take(scratch_bytes());
    tasks.backward.push_back(plan_conv_pool_backward(name() + " weight gradient", planning_.dnnl, stage,
                                                     memory, operands.params[0].grad,
                                                     grad_biases_of(operands)));
    tasks.backward.back().cost.flops = operands.flops;
    return tasks;
  }

 private:
  std::size_t scratch_bytes() const {
    return std::max(affine_.kernels.forward.scratch_bytes(), affine_.kernels.weight_gradient.scratch_bytes());
  }

  Pool pool_;
};

}  // namespace

PlannedGroupPtr plan_conv_pool_group(Planning& planning, const engine::Chain& chain, AffinePlace place) {
  const auto* const conv = chain.as<model::Conv2d>(0);
  const auto* const pool = chain.as<model::MaxPool>(place.relu ? 2 : 1);
  const int samples = samples_per_piece(planning.batch, planning.threads);
  if (pool == nullptr || samples == planning.batch || !place.choose_dst ||
      !planning.is(place.src, place.in, Tag::nchw)) {
    return nullptr;
  }
  place.batch = samples;
  place.src = activations(samples, place.in, planning.type, Tag::nchw);
  std::optional<ConvPool> fused =
      plan_conv_pool(planning.dnnl, *conv, *pool, place, planning.batch / samples);
  if (!fused) return nullptr;
  return std::make_unique<ConvPoolGroup>(planning, *conv, std::move(*fused), place.in);
}

}  // namespace cifar_mpi::cpu
