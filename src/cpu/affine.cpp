#include "cpu/affine.hpp"

#include <algorithm>
#include <utility>

#include "cpu/parallel.hpp"
#include "cpu/pieces.hpp"

namespace cifar_mpi::cpu {
namespace {

WeightCopy plan_copy(const Dnnl& dnnl, const Desc& master, const Desc& wanted) {
  if (wanted == master) return {wanted, std::nullopt, std::nullopt};
  return {wanted, std::nullopt, make_reorder(dnnl, master, wanted)};
}

WeightCopy plan_rotated_copy(const Dnnl& dnnl, const Desc& master, const Desc& wanted, Rotation rotation) {
  rotation.unpack = make_reorder(dnnl, master, rotation.taps);
  Kernel reorder = make_reorder(dnnl, rotation.rotated, wanted);
  return {wanted, std::move(rotation), std::move(reorder)};
}

/// Reverses the order of the taps in place.
engine::Task rotate_task(const std::string& name, const Rotation& rotation, std::byte* taps) {
  auto* const first = reinterpret_cast<float*>(taps);
  const std::size_t floats = rotation.tap_floats;
  const int count = rotation.tap_count;
  const engine::Bytes bytes = engine::bytes_of(first, floats * static_cast<std::size_t>(count));
  const auto turn = [first, floats, count](engine::Lane&) {
    parallel_values(floats, [=](std::size_t begin, std::size_t end) {
      for (int t = 0; t < count / 2; ++t) {
        float* const tap = first + floats * static_cast<std::size_t>(t);
        std::swap_ranges(tap + begin, tap + end,
                         first + floats * static_cast<std::size_t>(count - 1 - t) + begin);
      }
    });
  };
  return {name, {bytes}, {bytes}, turn, {}};
}

}  // namespace

Affine make_affine(const Dnnl& dnnl, const AffineFormats& formats, AffineKernels kernels,
                   std::optional<Rotation> rotation) {
  Affine affine;
  affine.src = formats.src;
  affine.bias = formats.biases;
  affine.dst = kernels.forward.describe(dnnl::query::dst_md);
  affine.grad_dst = kernels.weight_gradient.describe(dnnl::query::diff_dst_md);
  affine.master = kernels.weight_gradient.describe(dnnl::query::diff_weights_md);
  affine.forward_weights = plan_copy(dnnl, affine.master, kernels.forward.describe(dnnl::query::weights_md));
  affine.wants_grad_src = formats.wants_grad_src;
  affine.relu = formats.relu;
  if (affine.wants_grad_src) {
    const Desc wanted = kernels.data_gradient.describe(dnnl::query::weights_md);
    affine.backward_weights = rotation ? plan_rotated_copy(dnnl, affine.master, wanted, std::move(*rotation))
                                       : plan_copy(dnnl, affine.master, wanted);
  }
  affine.kernels = std::move(kernels);
  return affine;
}

std::vector<engine::Task> prepare_tasks(const std::string& name, const Dnnl& dnnl, const Desc& master_desc,
                                        const WeightCopy& copy, const float* master, std::byte* taps,
                                        std::byte* weights, std::byte* scratch) {
  std::vector<engine::Task> tasks;
  if (!copy.reorder) return tasks;
  Operand from = reads(DNNL_ARG_FROM, master_desc, master);
  if (copy.rotation) {
    tasks.push_back(kernel_task(name + ", unpack", dnnl, copy.rotation->unpack,
                                {from, writes(DNNL_ARG_TO, copy.rotation->taps, taps)}, scratch));
    tasks.push_back(rotate_task(name + ", turn", *copy.rotation, taps));
    from = reads(DNNL_ARG_FROM, copy.rotation->rotated, taps);
  }
  tasks.push_back(
      kernel_task(name, dnnl, *copy.reorder, {from, writes(DNNL_ARG_TO, copy.desc, weights)}, scratch));
  return tasks;
}

std::vector<Operand> Affine::forward_operands(const std::byte* x, const void* weights, const float* biases,
                                              std::byte* y) const {
  std::vector<Operand> operands{reads(DNNL_ARG_SRC, src, x),
                                reads(DNNL_ARG_WEIGHTS, forward_weights.desc, weights),
                                writes(DNNL_ARG_DST, dst, y)};
  if (has_bias()) operands.push_back(reads(DNNL_ARG_BIAS, bias, biases));
  return operands;
}

std::vector<Operand> PieceSums::operands(int piece) const {
  const bool first = piece == 0;
  std::vector<Operand> list{writes(DNNL_ARG_DIFF_WEIGHTS, affine_.master, first ? sums_[0] : partial_)};
  if (affine_.has_bias()) {
    float* const biases = first ? sums_[1] : partial_ + affine_.weight_floats();
    list.push_back(writes(DNNL_ARG_DIFF_BIAS, affine_.bias, biases));
  }
  return list;
}

void PieceSums::add(int piece, std::vector<engine::Task>& parts) const {
  if (piece == 0) return;
  parts.push_back(add_task(partial_, sums_[0], affine_.weight_floats()));
  if (affine_.has_bias()) {
    parts.push_back(add_task(partial_ + affine_.weight_floats(), sums_[1], affine_.bias_floats()));
  }
}

engine::Task plan_affine_forward(const std::string& name, const Dnnl& dnnl, const Affine& affine,
                                 const AffineMemory& memory, const void* weights, const float* biases) {
  std::vector<engine::Task> parts;
  for (int p = 0; p < affine.pieces; ++p) {
    parts.push_back(kernel_task(name, dnnl, affine.kernels.forward,
                                affine.forward_operands(memory.src + offset_of_piece(affine.src, p), weights,
                                                        biases, memory.dst + offset_of_piece(affine.dst, p)),
                                memory.scratch));
  }
  return in_one(name, std::move(parts));
}

engine::Task plan_weight_gradient(const std::string& name, const Dnnl& dnnl, const Affine& affine,
                                  const AffineMemory& memory, float* grad_weights, float* grad_biases) {
  const PieceSums sums(affine, memory.partial, grad_weights, grad_biases);
  std::vector<engine::Task> parts;
  for (int p = 0; p < affine.pieces; ++p) {
    std::vector<Operand> operands = sums.operands(p);
    operands.push_back(reads(DNNL_ARG_SRC, affine.src, memory.src + offset_of_piece(affine.src, p)));
    operands.push_back(
        reads(DNNL_ARG_DIFF_DST, affine.grad_dst, memory.grad_dst + offset_of_piece(affine.grad_dst, p)));
    parts.push_back(
        kernel_task(name, dnnl, affine.kernels.weight_gradient, std::move(operands), memory.scratch));
    sums.add(p, parts);
  }
  return in_one(name, std::move(parts));
}

engine::Task plan_data_gradient(const std::string& name, const Dnnl& dnnl, const Affine& affine,
                                const AffineMemory& memory, const void* weights) {
  // The data gradient is a convolution of the gradient with rotated weights (see conv.hpp).
  const bool rotated = affine.is_rotated();
  std::vector<engine::Task> parts;
  for (int p = 0; p < affine.pieces; ++p) {
    parts.push_back(kernel_task(name, dnnl, affine.kernels.data_gradient,
                                {reads(rotated ? DNNL_ARG_SRC : DNNL_ARG_DIFF_DST, affine.grad_dst,
                                       memory.grad_dst + offset_of_piece(affine.grad_dst, p)),
                                 reads(DNNL_ARG_WEIGHTS, affine.backward_weights.desc, weights),
                                 writes(rotated ? DNNL_ARG_DST : DNNL_ARG_DIFF_SRC, affine.src,
                                        memory.grad_src + offset_of_piece(affine.src, p))},
                                memory.scratch));
  }
  return in_one(name, std::move(parts));
}

}  // namespace cifar_mpi::cpu
