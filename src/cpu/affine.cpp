#include "cpu/affine.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include "cpu/parallel.hpp"
#include "cpu/pieces.hpp"
#include "cpu/shared_pieces.hpp"

namespace cifar_mpi::cpu {
namespace {

/// With so few weights, waking oneDNN's threads takes longer than the copy.
bool few_weights(const Desc& master) {
  constexpr std::size_t kMostBytes = std::size_t{512} << 10;
  return master.get_size() <= kMostBytes;
}

WeightCopy plan_weight_copy(const Dnnl& dnnl, const Desc& master, const Desc& wanted) {
  if (wanted == master) return {wanted, std::nullopt, std::nullopt};
  const OneThread one(few_weights(master));
  return {wanted, std::nullopt, make_reorder(dnnl, master, wanted)};
}

WeightCopy plan_rotated_copy(const Dnnl& dnnl, const Desc& master, const Desc& wanted, Rotation rotation) {
  const OneThread one(few_weights(master));
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

/// The task that runs `kernel` for all pieces.
engine::Task plan_pieces(const std::string& name, const Dnnl& dnnl, const Affine& affine,
                         const Kernel& kernel, const std::vector<std::vector<Operand>>& pieces,
                         std::byte* scratch) {
  if (affine.concurrent > 1)
    return shared_kernel_task(name, dnnl, kernel, pieces, affine.concurrent, scratch);
  std::vector<engine::Task> parts;
  for (const std::vector<Operand>& operands : pieces)
    parts.push_back(kernel_task(name, dnnl, kernel, operands, scratch));
  return in_one(name, std::move(parts));
}

}  // namespace

Affine make_affine(const Dnnl& dnnl, const AffineFormats& formats, AffineKernels kernels,
                   std::optional<Rotation> rotation, const Desc& master) {
  Affine affine;
  affine.src = formats.src;
  affine.bias = formats.biases;
  affine.dst = kernels.forward.describe(dnnl::query::dst_md);
  affine.grad_dst = kernels.weight_gradient.describe(dnnl::query::diff_dst_md);
  affine.master = master == Desc() ? kernels.weight_gradient.describe(dnnl::query::diff_weights_md) : master;
  affine.forward_weights =
      plan_weight_copy(dnnl, affine.master, kernels.forward.describe(dnnl::query::weights_md));
  affine.wants_grad_src = formats.wants_grad_src;
  affine.relu = formats.relu;
  if (affine.wants_grad_src) {
    const Desc wanted = kernels.data_gradient.describe(dnnl::query::weights_md);
    affine.backward_weights = rotation ? plan_rotated_copy(dnnl, affine.master, wanted, std::move(*rotation))
                                       : plan_weight_copy(dnnl, affine.master, wanted);
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

std::size_t Affine::scratch_bytes(const Kernel& kernel) const {
  return concurrent > 1 ? shared_scratch_bytes(kernel, concurrent) : kernel.scratch_bytes();
}

std::size_t Affine::gradient_scratch_bytes() const {
  if (!own_gradient) return scratch_bytes(kernels.weight_gradient);
  return own_gradient->scratch_bytes() * static_cast<std::size_t>(concurrent);
}

std::size_t Affine::partial_floats() const {
  constexpr std::size_t kLine = 16;
  return (weight_floats() + bias_floats() + kLine - 1) / kLine * kLine;
}

std::size_t Affine::partial_bytes() const {
  const int parts = concurrent > 1 ? pieces - 1 : 1;
  return partial_floats() * sizeof(float) * static_cast<std::size_t>(parts);
}

std::vector<Operand> PieceSums::operands(int piece) const {
  const bool first = piece == 0;
  const int part = affine_.concurrent > 1 ? piece - 1 : 0;
  float* const partial =
      first ? nullptr : partial_ + affine_.partial_floats() * static_cast<std::size_t>(part);
  std::vector<Operand> list{writes(DNNL_ARG_DIFF_WEIGHTS, affine_.master, first ? sums_[0] : partial)};
  if (affine_.has_bias()) {
    float* const biases = first ? sums_[1] : partial + affine_.weight_floats();
    list.push_back(writes(DNNL_ARG_DIFF_BIAS, affine_.bias, biases));
  }
  return list;
}

void PieceSums::add(int parts, std::vector<engine::Task>& tasks) const {
  if (parts == 0) return;
  const std::size_t stride = affine_.partial_floats(), weights = affine_.weight_floats();
  tasks.push_back(add_parts_task(partial_, stride, parts, sums_[0], weights));
  if (affine_.has_bias())
    tasks.push_back(add_parts_task(partial_ + weights, stride, parts, sums_[1], affine_.bias_floats()));
}

engine::Task plan_affine_forward(const std::string& name, const Dnnl& dnnl, const Affine& affine,
                                 const AffineMemory& memory, const void* weights, const float* biases) {
  std::vector<std::vector<Operand>> pieces;
  for (int p = 0; p < affine.pieces; ++p) {
    pieces.push_back(affine.forward_operands(memory.src + offset_of_piece(affine.src, p), weights, biases,
                                             memory.dst + offset_of_piece(affine.dst, p)));
  }
  return plan_pieces(name, dnnl, affine, affine.kernels.forward, pieces, memory.scratch);
}

namespace {

/// The weight gradient by our kernel. Pieces are added in order, as oneDNN's are.
engine::Task plan_own_gradient(const std::string& name, const Affine& affine, const AffineMemory& memory,
                               float* grad_weights) {
  const auto pieces = static_cast<std::size_t>(affine.pieces);
  const bool at_once = affine.concurrent > 1;
  auto* const partial = reinterpret_cast<float*>(memory.partial);
  const RunPiece run_piece = [=, own = *affine.own_gradient,
                              samples = static_cast<int>(dims_of(affine.src)[0]),
                              src_bytes = affine.src.get_size(), grad_bytes = affine.grad_dst.get_size(),
                              stride = affine.partial_floats()](std::ptrdiff_t piece, int thread,
                                                                const std::function<void()>& progress) {
    const auto p = static_cast<std::size_t>(piece);
    own.run({reinterpret_cast<const bf16*>(memory.src + p * src_bytes),
             reinterpret_cast<const bf16*>(memory.grad_dst + p * grad_bytes), samples,
             at_once && p > 0 ? partial + stride * (p - 1) : grad_weights, !at_once && p > 0},
            memory.scratch + own.scratch_bytes() * static_cast<std::size_t>(thread), progress);
  };
  engine::Task product;
  product.reads = {{memory.src, affine.src.get_size() * pieces},
                   {memory.grad_dst, affine.grad_dst.get_size() * pieces}};
  product.writes = {engine::bytes_of(grad_weights, affine.weight_floats()),
                    {memory.scratch, affine.gradient_scratch_bytes()}};
  if (!at_once) {
    product.name = name;
    product.start = [=](engine::Lane& lane) {
      for (std::size_t p = 0; p < pieces; ++p)
        run_piece(static_cast<std::ptrdiff_t>(p), 0, [&] { lane.make_progress(); });
    };
    return product;
  }
  product.writes.push_back({memory.partial, affine.partial_bytes()});
  product.start = [=](engine::Lane& lane) {
    run_pieces(lane, static_cast<std::ptrdiff_t>(pieces), run_piece);
  };
  std::vector<engine::Task> tasks{std::move(product)};
  PieceSums(affine, memory.partial, grad_weights, nullptr).add(affine.pieces - 1, tasks);
  return in_one(name, std::move(tasks));
}

}  // namespace

engine::Task plan_weight_gradient(const std::string& name, const Dnnl& dnnl, const Affine& affine,
                                  const AffineMemory& memory, float* grad_weights, float* grad_biases) {
  if (affine.own_gradient) return plan_own_gradient(name, affine, memory, grad_weights);
  const PieceSums sums(affine, memory.partial, grad_weights, grad_biases);
  const Kernel& kernel = affine.kernels.weight_gradient;
  std::vector<std::vector<Operand>> pieces;
  for (int p = 0; p < affine.pieces; ++p) {
    pieces.push_back(sums.operands(p));
    pieces.back().push_back(reads(DNNL_ARG_SRC, affine.src, memory.src + offset_of_piece(affine.src, p)));
    pieces.back().push_back(
        reads(DNNL_ARG_DIFF_DST, affine.grad_dst, memory.grad_dst + offset_of_piece(affine.grad_dst, p)));
  }
  std::vector<engine::Task> tasks;
  if (affine.concurrent > 1) {
    tasks.push_back(shared_kernel_task(name, dnnl, kernel, pieces, affine.concurrent, memory.scratch));
    sums.add(affine.pieces - 1, tasks);
    return in_one(name, std::move(tasks));
  }
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    tasks.push_back(kernel_task(name, dnnl, kernel, pieces[p], memory.scratch));
    sums.add(p == 0 ? 0 : 1, tasks);
  }
  return in_one(name, std::move(tasks));
}

engine::Task plan_data_gradient(const std::string& name, const Dnnl& dnnl, const Affine& affine,
                                const AffineMemory& memory, const void* weights) {
  // The data gradient is a convolution of the gradient with rotated weights (see conv.hpp).
  const bool rotated = affine.is_rotated();
  std::vector<std::vector<Operand>> pieces;
  for (int p = 0; p < affine.pieces; ++p) {
    pieces.push_back({reads(rotated ? DNNL_ARG_SRC : DNNL_ARG_DIFF_DST, affine.grad_dst,
                            memory.grad_dst + offset_of_piece(affine.grad_dst, p)),
                      reads(DNNL_ARG_WEIGHTS, affine.backward_weights.desc, weights),
                      writes(rotated ? DNNL_ARG_DST : DNNL_ARG_DIFF_SRC, affine.src,
                             memory.grad_src + offset_of_piece(affine.src, p))});
  }
  return plan_pieces(name, dnnl, affine, affine.kernels.data_gradient, pieces, memory.scratch);
}

}  // namespace cifar_mpi::cpu
