#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cpu/conv_pool.hpp"

namespace cifar_mpi::cpu {

using Tag = dnnl::memory::format_tag;

std::optional<PlannedPool> plan_pool(const model::MaxPool& layer, int batch, const Desc& src,
                                     const Extent& in) {
  if (layer.kernel > kMostPoolWindow) {
    throw Error(ErrorKind::usage, layer.name, " has a window of ", layer.kernel,
                ", but the cpu kernels take at most ", kMostPoolWindow);
  }
  const dnnl::memory::data_type type = data_type_of(src);
  struct Layout {
    Tag format;
    int block;
  };
  for (const auto& [format, block] :
       {Layout{Tag::nhwc, in.channels}, {Tag::nchw, 1}, {Tag::nChw16c, 16}, {Tag::nChw8c, 8}}) {
    if (!(src == activations(batch, in, type, format))) continue;
    Pool pool;
    pool.layer = layer;
    pool.in = in;
    pool.batch = batch;
    pool.blocks = (in.channels + block - 1) / block;
    pool.block = block;
    pool.precision =
        type == dnnl::memory::data_type::bf16 ? engine::Precision::bf16 : engine::Precision::fp32;
    pool.set = pool_vectors(block);
    return PlannedPool{pool, format};
  }
  return std::nullopt;
}

void note_pool(Planning& planning, const Pool& pool) {
  const bool vectors = pool.block >= lanes_of(VectorSet::portable);
  planning.text +=
      concat(pool.layer.name, ": own kernels, ", vectors ? name_of(pool.set) : "value by value", '\n');
}

namespace {

class PoolGroup final : public PlannedGroup {
 public:
  PoolGroup(Planning& planning, const Pool& pool, const Desc& src, const Desc& dst)
      : PlannedGroup(planning), pool_(pool) {
    note_pool(planning, pool);
    contract_.name = pool.layer.name;
    contract_.src = {planning.formats(src)};
    contract_.dst = planning.formats(dst);
    contract_.mask_src = engine::ReluMask::passes;
  }

  engine::GroupTasks tasks(const engine::Operands& operands, engine::Arena& arena) const override {
    engine::GroupTasks tasks;
    const bool wants_gradient = operands.grad_src[0] != nullptr;
    auto* const choices =
        wants_gradient ? arena.take_array<std::uint8_t>(pool_.values_in(pool_.out())) : nullptr;
    tasks.forward.push_back(
        plan_pool_forward(name() + " forward", pool_, operands.src[0], operands.dst, choices));
    if (!wants_gradient) return tasks;
    tasks.backward.push_back(
        plan_pool_backward(name() + " backward", pool_, operands.grad_dst, choices, operands.grad_src[0]));
    return tasks;
  }

 private:
  Pool pool_;
};

}  // namespace

PlannedGroupPtr plan_pool_group(Planning& planning, const engine::Chain& chain) {
  const auto* const layer = chain.as<model::MaxPool>(0);
  if (layer == nullptr) return nullptr;
  Desc src = planning.desc(chain.inputs[0].value);
  std::optional<PlannedPool> planned = plan_pool(*layer, planning.batch, src, chain.in());
  if (!planned) {
    src = planning.nhwc(chain.in());
    planned = plan_pool(*layer, planning.batch, src, chain.in());
  }
  const Desc dst = activations(planning.batch, chain.out(0), planning.type, planned->format);
  return std::make_unique<PoolGroup>(planning, planned->pool, src, dst);
}

}  // namespace cifar_mpi::cpu
