#include "cpu/conv_pool.hpp"

#include <algorithm>
#include <utility>
#include <vector>

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
    parts.push_back(
        kernel_task(name, dnnl, conv.kernels.forward,
                    {reads(DNNL_ARG_SRC, conv.src, memory.src + offset_of_piece(conv.src, p)),
                     reads(DNNL_ARG_WEIGHTS, conv.forward_weights.desc, weights),
                     reads(DNNL_ARG_BIAS, conv.bias, biases), writes(DNNL_ARG_DST, conv.dst, memory.piece)},
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

}  // namespace cifar_mpi::cpu
