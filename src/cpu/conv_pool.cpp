#include "cpu/conv_pool.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "cpu/affine_group.hpp"
#include "cpu/conv.hpp"
#include "cpu/pieces.hpp"
#include "cpu/pool.hpp"

namespace cifar_mpi::cpu {
namespace {

using engine::Task;
using Tag = dnnl::memory::format_tag;

}  // namespace

std::optional<ConvPool> plan_conv_pool(const Dnnl& dnnl, const model::Conv2d& conv,
                                       const model::MaxPool& pool, const AffinePlace& place,
                                       const Extent& out, int pieces) {
  ConvPool stage{plan_conv(dnnl, conv, place), {}, {}, {}};
  stage.conv.pieces = pieces;
  stage.pool = plan_pool(dnnl, pool, place.batch, stage.conv.dst, place.out, out, place.type);
  stage.piece_dst = stage.pool.kernels.forward.describe(dnnl::query::dst_md);
  for (const Tag tag : {Tag::nChw16c, Tag::nChw8c, Tag::nhwc, Tag::nchw}) {
    if (!(stage.piece_dst == activations(place.batch, out, place.type, tag))) continue;
    stage.dst = activations(place.batch * pieces, out, place.type, tag);
    return stage;
  }
  return std::nullopt;
}

Task plan_conv_pool_forward(const std::string& name, const Dnnl& dnnl, const ConvPool& stage,
                            const ConvPoolMemory& memory, const void* weights, const float* biases) {
  const Affine& conv = stage.conv;
  const PoolKernels& pool = stage.pool.kernels;
  const bool training = memory.workspace != nullptr;
  std::vector<Task> parts;
  for (int p = 0; p < conv.pieces; ++p) {
    parts.push_back(kernel_task(
        name, dnnl, conv.kernels.forward,
        conv.forward_operands(memory.src + offset_of_piece(conv.src, p), weights, biases, memory.piece),
        memory.scratch));
    std::vector<Operand> operands{
        reads(DNNL_ARG_SRC, conv.dst, memory.piece),
        writes(DNNL_ARG_DST, stage.piece_dst, memory.dst + offset_of_piece(stage.piece_dst, p))};
    if (training) {
      std::byte* const workspace = memory.workspace + offset_of_piece(stage.pool.workspace, p);
      operands.push_back(writes(DNNL_ARG_WORKSPACE, stage.pool.workspace, workspace));
    }
    parts.push_back(kernel_task(name, dnnl, training ? pool.forward : pool.inference, std::move(operands),
                                memory.scratch));
  }
  return in_one(name, std::move(parts));
}

Task plan_conv_pool_backward(const std::string& name, const Dnnl& dnnl, const ConvPool& stage,
                             const ConvPoolMemory& memory, float* grad_weights, float* grad_biases) {
  const Affine& conv = stage.conv;
  const PieceSums sums(conv, memory.partial, grad_weights, grad_biases);
  std::vector<Task> parts;
  for (int p = 0; p < conv.pieces; ++p) {
    parts.push_back(kernel_task(
        name, dnnl, stage.pool.kernels.backward,
        {reads(DNNL_ARG_DIFF_DST, stage.piece_dst, memory.grad_dst + offset_of_piece(stage.piece_dst, p)),
         reads(DNNL_ARG_WORKSPACE, stage.pool.workspace,
               memory.workspace + offset_of_piece(stage.pool.workspace, p)),
         writes(DNNL_ARG_DIFF_SRC, conv.dst, memory.piece)},
        memory.scratch));
    std::vector<Operand> operands = sums.operands(p);
    operands.push_back(reads(DNNL_ARG_SRC, conv.src, memory.src + offset_of_piece(conv.src, p)));
    operands.push_back(reads(DNNL_ARG_DIFF_DST, conv.grad_dst, memory.piece));
    parts.push_back(
        kernel_task(name, dnnl, conv.kernels.weight_gradient, std::move(operands), memory.scratch));
    sums.add(p, parts);
  }
  return in_one(name, std::move(parts));
}

namespace {

class ConvPoolGroup final : public AffineGroup {
 public:
  ConvPoolGroup(Planning& planning, const model::Conv2d& conv, const model::MaxPool& pool, ConvPool stage,
                const Extent& in)
      : AffineGroup(planning, conv.name, std::move(stage.conv), conv_logical_weights(conv, in)),
        pool_(std::move(stage.pool)),
        piece_dst_(std::move(stage.piece_dst)) {
    note_pool(planning, pool.name, pool_);
    contract_.name = conv.name + " + " + pool.name;
    ++contract_.operations;
    contract_.src = {planning.formats(activations(planning.batch, in, planning.type, Tag::nchw))};
    contract_.dst = planning.formats(stage.dst);
  }

  engine::GroupTasks tasks(const engine::Operands& operands, engine::Arena& arena) const override {
    const ConvPool stage{affine_, pool_, piece_dst_, {}};
    engine::GroupTasks tasks;
    const Weights weights = prepare(operands, arena, tasks.prepare);
    ConvPoolMemory memory;
    memory.src = operands.src[0];
    memory.dst = operands.dst;
    memory.grad_dst = operands.grad_dst;
    memory.piece = arena.take(affine_.dst.get_size());
    if (operands.training) {
      memory.workspace = arena.take(static_cast<std::size_t>(affine_.pieces) * pool_.workspace.get_size());
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
    std::size_t most = 0;
    for (const Kernel* kernel : {&affine_.kernels.forward, &affine_.kernels.weight_gradient,
                                 &pool_.kernels.forward, &pool_.kernels.inference, &pool_.kernels.backward}) {
      most = std::max(most, kernel->scratch_bytes());
    }
    return most;
  }

  Pool pool_;
  Desc piece_dst_;
};

}  // namespace

PlannedGroupPtr plan_conv_pool_group(Planning& planning, const engine::Chain& chain, AffinePlace place) {
  const auto* const conv = chain.as<model::Conv2d>(0);
  const std::size_t next = place.relu ? 2 : 1;
  const auto* const pool = chain.as<model::MaxPool>(next);
  const int samples = samples_per_piece(planning.batch, planning.threads);
  if (pool == nullptr || samples == planning.batch || !place.choose_dst ||
      !planning.is(place.src, place.in, Tag::nchw)) {
    return nullptr;
  }
  place.batch = samples;
  place.src = activations(samples, place.in, planning.type, Tag::nchw);
  std::optional<ConvPool> fused =
      plan_conv_pool(planning.dnnl, *conv, *pool, place, chain.out(next), planning.batch / samples);
  if (!fused) return nullptr;
  return std::make_unique<ConvPoolGroup>(planning, *conv, *pool, std::move(*fused), place.in);
}

}  // namespace cifar_mpi::cpu
