#include "cpu/conv_pool.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "cpu/conv.hpp"
#include "cpu/pool.hpp"

namespace cifar_mpi::cpu {
namespace {

using engine::Task;
using Tag = dnnl::memory::format_tag;

constexpr int kMostPerThread = 16;
constexpr int kLeastPerThread = 4;

/// One task that does what all of `parts` do, in order.
Task in_one(const std::string& name, std::vector<Task> parts) {
  Task task;
  task.name = name;
  for (const Task& part : parts) {
    task.reads.insert(task.reads.end(), part.reads.begin(), part.reads.end());
    task.writes.insert(task.writes.end(), part.writes.begin(), part.writes.end());
  }
  task.start = [parts = std::move(parts)](engine::Lane& lane) {
    for (const Task& part : parts) part.start(lane);
  };
  return task;
}

/// sum += part over `count` floats.
Task add_task(const float* part, float* sum, std::size_t count) {
  const auto add = [part, sum, count](engine::Lane&) {
#pragma omp simd
    for (std::size_t i = 0; i < count; ++i) sum[i] += part[i];
  };
  return {"add", {engine::bytes_of(part, count)}, {engine::bytes_of(sum, count)}, add, {}};
}

std::size_t offset(const Desc& desc, int piece) { return desc.get_size() * static_cast<std::size_t>(piece); }

}  // namespace

int samples_per_piece(int batch, int threads) {
  int samples = std::min(batch, kMostPerThread * threads);
  while (batch % samples != 0) --samples;
  return samples < kLeastPerThread * threads ? batch : samples;
}

std::optional<ConvPool> plan_conv_pool(const Dnnl& dnnl, const model::Conv2d& conv,
                                       const model::MaxPool& pool, const AffinePlace& place,
                                       const Extent& out, int pieces) {
  ConvPool stage{plan_conv(dnnl, conv, place), {}, {}, {}, pieces};
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
  for (int p = 0; p < stage.pieces; ++p) {
    parts.push_back(
        kernel_task(name, dnnl, conv.kernels.forward,
                    {reads(DNNL_ARG_SRC, conv.src, memory.src + offset(conv.src, p)),
                     reads(DNNL_ARG_WEIGHTS, conv.forward_weights.desc, weights),
                     reads(DNNL_ARG_BIAS, conv.bias, biases), writes(DNNL_ARG_DST, conv.dst, memory.piece)},
                    memory.scratch));
    std::vector<Operand> operands{
        reads(DNNL_ARG_SRC, conv.dst, memory.piece),
        writes(DNNL_ARG_DST, stage.piece_dst, memory.dst + offset(stage.piece_dst, p))};
    if (training) {
      std::byte* const workspace = memory.workspace + offset(stage.pool.workspace, p);
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
  auto* const partial_weights = reinterpret_cast<float*>(memory.partial);
  float* const partial_biases = partial_weights + stage.weight_floats();
  std::vector<Task> parts;
  for (int p = 0; p < stage.pieces; ++p) {
    const bool first = p == 0;
    parts.push_back(kernel_task(
        name, dnnl, stage.pool.kernels.backward,
        {reads(DNNL_ARG_DIFF_DST, stage.piece_dst, memory.grad_dst + offset(stage.piece_dst, p)),
         reads(DNNL_ARG_WORKSPACE, stage.pool.workspace, memory.workspace + offset(stage.pool.workspace, p)),
         writes(DNNL_ARG_DIFF_SRC, conv.dst, memory.piece)},
        memory.scratch));
    parts.push_back(
        kernel_task(name, dnnl, conv.kernels.weight_gradient,
                    {reads(DNNL_ARG_SRC, conv.src, memory.src + offset(conv.src, p)),
                     reads(DNNL_ARG_DIFF_DST, conv.grad_dst, memory.piece),
                     writes(DNNL_ARG_DIFF_WEIGHTS, conv.master, first ? grad_weights : partial_weights),
                     writes(DNNL_ARG_DIFF_BIAS, conv.bias, first ? grad_biases : partial_biases)},
                    memory.scratch));
    if (first) continue;
    parts.push_back(add_task(partial_weights, grad_weights, stage.weight_floats()));
    parts.push_back(add_task(partial_biases, grad_biases, conv.bias.get_size() / sizeof(float)));
  }
  return in_one(name, std::move(parts));
}

}  // namespace cifar_mpi::cpu
