#include <optional>

#include "cpu/planning.hpp"

namespace cifar_mpi::cpu {
namespace {

/// The same values in another format or type.
class ReorderGroup final : public PlannedGroup {
 public:
  ReorderGroup(Planning& planning, const std::string& name, const engine::ValueFormat& from,
               const engine::ValueFormat& to, bool wants_grad)
      : PlannedGroup(planning),
        forward_(make_reorder(planning.dnnl, planning.desc(from.value), planning.desc(to.value))) {
    contract_.name = name;
    contract_.src = {from};
    contract_.dst = to;
    planning.note(name + " forward", forward_);
    if (!wants_grad) return;
    backward_ = make_reorder(planning.dnnl, planning.desc(to.grad), planning.desc(from.grad));
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
  engine::Task run(std::string task_name, const Kernel& kernel, const engine::Format& from,
                   const std::byte* src, const engine::Format& to, std::byte* dst,
                   engine::Arena& arena) const {
    return kernel_task(
        std::move(task_name), planning_.dnnl, kernel,
        {reads(DNNL_ARG_FROM, planning_.desc(from), src), writes(DNNL_ARG_TO, planning_.desc(to), dst)},
        arena.take(kernel.scratch_bytes()));
  }

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
