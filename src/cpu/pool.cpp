#include "cpu/pool.hpp"

#include <utility>

namespace cifar_mpi::cpu {

Pool plan_pool(const Dnnl& dnnl, const model::MaxPool& layer, int batch, const Desc& src, const Extent& in,
               const Extent& out, dnnl::memory::data_type type) {
  const Desc dst = activations(batch, out, type, dnnl::memory::format_tag::any);
  const Window window{layer.kernel, layer.stride, in.height, in.width};
  Pool pool{make_max_pool(dnnl, src, dst, window), {}};
  pool.workspace = pool.kernels.forward.describe(dnnl::query::workspace_md);
  return pool;
}

void note_pool(Planning& planning, const std::string& name, const Pool& pool) {
  planning.note(name + " forward", pool.kernels.forward);
  planning.note(name + " inference", pool.kernels.inference);
  planning.note(name + " backward", pool.kernels.backward);
}

namespace {

class PoolGroup final : public PlannedGroup {
 public:
  PoolGroup(Planning& planning, const std::string& name, Pool pool, const Desc& src)
      : PlannedGroup(planning),
        pool_(std::move(pool)),
        src_(src),
        dst_(pool_.kernels.forward.describe(dnnl::query::dst_md)) {
    note_pool(planning, name, pool_);
    contract_.name = name;
    contract_.src = {planning.formats(src_)};
    contract_.dst = planning.formats(dst_);
    contract_.mask_src = engine::ReluMask::passes;
  }

  engine::GroupTasks tasks(const engine::Operands& operands, engine::Arena& arena) const override {
    engine::GroupTasks tasks;
    const Kernel& forward = operands.training ? pool_.kernels.forward : pool_.kernels.inference;
    std::vector<Operand> list{reads(DNNL_ARG_SRC, src_, operands.src[0]),
                              writes(DNNL_ARG_DST, dst_, operands.dst)};
    std::byte* const choices = operands.training ? arena.take(pool_.workspace.get_size()) : nullptr;
    if (operands.training) list.push_back(writes(DNNL_ARG_WORKSPACE, pool_.workspace, choices));
    tasks.forward.push_back(kernel_task(name() + " forward", planning_.dnnl, forward, std::move(list),
                                        arena.take(forward.scratch_bytes())));
    if (operands.grad_src[0] == nullptr) return tasks;
    const Kernel& backward = pool_.kernels.backward;
    tasks.backward.push_back(kernel_task(name() + " backward", planning_.dnnl, backward,
                                         {reads(DNNL_ARG_DIFF_DST, dst_, operands.grad_dst),
                                          reads(DNNL_ARG_WORKSPACE, pool_.workspace, choices),
                                          writes(DNNL_ARG_DIFF_SRC, src_, operands.grad_src[0])},
                                         arena.take(backward.scratch_bytes())));
    return tasks;
  }

 private:
  Pool pool_;
  Desc src_, dst_;
};

}  // namespace

PlannedGroupPtr plan_pool_group(Planning& planning, const engine::Chain& chain) {
  const auto* const layer = chain.as<model::MaxPool>(0);
  if (layer == nullptr) return nullptr;
  const Desc src = planning.desc(chain.inputs[0].value);
  return std::make_unique<PoolGroup>(
      planning, layer->name,
      plan_pool(planning.dnnl, *layer, planning.batch, src, chain.in(), chain.out(0), planning.type), src);
}

}  // namespace cifar_mpi::cpu
