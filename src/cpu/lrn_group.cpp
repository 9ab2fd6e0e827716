#include "cpu/lrn.hpp"
#include "cpu/planning.hpp"

namespace cifar_mpi::cpu {
namespace {

class LrnGroup final : public PlannedGroup {
 public:
  LrnGroup(Planning& planning, const model::LocalResponseNorm& layer, const LrnShape& shape, const Desc& src,
           const Desc& dst)
      : PlannedGroup(planning), layer_(layer), shape_(shape) {
    contract_.name = layer.name;
    contract_.src = {planning.formats(src)};
    contract_.dst = planning.formats(dst);
    contract_.mask_src = engine::ReluMask::takes;
    contract_.grad_on_src = true;
  }

  engine::GroupTasks tasks(const engine::Operands& operands, engine::Arena&) const override {
    engine::GroupTasks tasks;
    tasks.forward.push_back(plan_lrn_forward(name() + " forward", layer_, shape_, planning_.precision,
                                             operands.src[0], operands.dst));
    if (operands.grad_src[0] == nullptr) return tasks;
    tasks.backward.push_back(plan_lrn_backward(name() + " backward", layer_, shape_, planning_.precision,
                                               operands.src[0], operands.grad_dst, operands.grad_src[0],
                                               operands.mask_src));
    return tasks;
  }

 private:
  model::LocalResponseNorm layer_;
  LrnShape shape_;
};

}  // namespace

PlannedGroupPtr plan_lrn_group(Planning& planning, const engine::Chain& chain) {
  const auto* const layer = chain.as<model::LocalResponseNorm>(0);
  if (layer == nullptr) return nullptr;
  const Extent& extent = chain.in();
  const ChannelBlocks src = planning.known_blocks(chain.inputs[0].value, extent);
  const LrnShape shape{planning.batch, extent.height * extent.width, extent.channels, src.block,
                       extent.channels};
  return std::make_unique<LrnGroup>(planning, *layer, shape, src.desc, planning.nhwc(extent));
}

}  // namespace cifar_mpi::cpu
