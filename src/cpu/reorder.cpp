#include <optional>

#include "cpu/pieces.hpp"
#include "cpu/planning.hpp"
#include "cpu/shared_pieces.hpp"

namespace cifar_mpi::cpu {
namespace {

/// The same values in another format or type. Threads share the batch in pieces if it has such pieces.
class ReorderGroup final : public PlannedGroup {
 public:
  ReorderGroup(Planning& planning, const std::string& name, const engine::ValueFormat& from,
               const engine::ValueFormat& to, bool wants_grad)
      : PlannedGroup(planning),
        samples_(samples_per_shared_piece(planning.batch, planning.threads)),
        forward_(plan(from.value, to.value)) {
    contract_.name = name;
    contract_.src = {from};
    contract_.dst = to;
    planning.note(name + " forward", forward_);
    if (!wants_grad) return;
    backward_ = plan(to.grad, from.grad);
    planning.note(name + " backward", *backward_);
  }

  engine::GroupTasks tasks(const engine::Operands& operands, engine::Arena& arena) const override {
    engine::GroupTasks tasks;
    tasks.forward.push_back(run(name() + " forward", forward_, contract_.src[0].value, operands.src[0],
                                contract_.dst.value, operands.dst, arena));
    if (operands.grad_src[0] == nullptr) return tasks;
    tasks.backward.push_back(run(name() + " backward", *backward_, contract_.dst.grad, operands.grad_dst,
                                 contract_.src[0].grad, operands.grad_src[0], arena));
    return tasks;
  }

 private:
  /// Of a piece, or of the whole batch.
  Desc desc(const engine::Format& format) const {
    const Desc& whole = planning_.desc(format);
    return samples_ == 0 ? whole : piece_of(whole, samples_);
  }
  Kernel plan(const engine::Format& from, const engine::Format& to) const {
    const OneThread one(samples_ != 0);
    return make_reorder(planning_.dnnl, desc(from), desc(to));
  }

  engine::Task run(std::string task_name, const Kernel& kernel, const engine::Format& from,
                   const std::byte* src, const engine::Format& to, std::byte* dst,
                   engine::Arena& arena) const {
    const Desc read = desc(from), written = desc(to);
    if (samples_ == 0) {
      return kernel_task(std::move(task_name), planning_.dnnl, kernel,
                         {reads(DNNL_ARG_FROM, read, src), writes(DNNL_ARG_TO, written, dst)},
                         arena.take(kernel.scratch_bytes()));
    }
    std::vector<std::vector<Operand>> pieces;
    for (int p = 0; p < planning_.batch / samples_; ++p) {
      pieces.push_back({reads(DNNL_ARG_FROM, read, src + offset_of_piece(read, p)),
                        writes(DNNL_ARG_TO, written, dst + offset_of_piece(written, p))});
    }
    return shared_kernel_task(std::move(task_name), planning_.dnnl, kernel, pieces, planning_.threads,
                              arena.take(shared_scratch_bytes(kernel, planning_.threads)));
  }

  int samples_;  ///< of a piece; 0: the whole batch at once
  Kernel forward_;
  std::optional<Kernel> backward_;
};

}  // namespace

PlannedGroupPtr plan_reorder_group(Planning& planning, const std::string& name,
                                   const engine::ValueFormat& from, const engine::ValueFormat& to,
                                   bool wants_grad) {
  return std::make_unique<ReorderGroup>(planning, name, from, to, wants_grad);
}

}  // namespace cifar_mpi::cpu
