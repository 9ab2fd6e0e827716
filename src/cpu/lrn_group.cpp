#include "cpu/lrn.hpp"
#include "cpu/planning.hpp"

namespace cifar_mpi::cpu {

PlannedGroupPtr plan_lrn_group(Planning& planning, const engine::Chain& chain) {
  const auto* const layer = chain.as<model::LocalResponseNorm>(0);
  if (layer == nullptr) return nullptr;
  const Extent& extent = chain.in();
  const ChannelBlocks src = planning.known_blocks(chain.inputs[0].value, extent);
  const LrnShape shape{planning.batch, extent.height * extent.width, extent.channels, src.block,
                       extent.channels};
  const engine::ValueFormat from = planning.formats(src.desc), to = planning.formats(planning.nhwc(extent));
  engine::Contract contract = plain_contract(layer->name, from, to);
  contract.mask_src = engine::ReluMask::takes;
  contract.grad_on_src = true;
  const engine::Precision precision = planning.precision;
  return simple_group(
      planning, contract,
      [=, lrn = *layer](const std::string& name, const engine::Operands& o) {
        return plan_lrn_forward(name, lrn, shape, precision, o.src[0], o.dst);
      },
      [=, lrn = *layer](const std::string& name, const engine::Operands& o) {
        return plan_lrn_backward(name, lrn, shape, precision, o.src[0], o.grad_dst, o.grad_src[0],
                                 o.mask_src);
      });
}

}  // namespace cifar_mpi::cpu
