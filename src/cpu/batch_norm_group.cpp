#include <algorithm>

#include "cpu/batch_norm.hpp"
#include "cpu/planning.hpp"

namespace cifar_mpi::cpu {
namespace {

class BatchNormGroup final : public PlannedGroup {
 public:
  BatchNormGroup(Planning& planning, const model::BatchNorm& layer, const BatchNormShape& shape,
                 const Desc& src, const Desc& dst, bool relu)
      : PlannedGroup(planning), epsilon_(layer.epsilon), shape_(shape), relu_(relu) {
    const auto channels = static_cast<std::size_t>(shape.channels);
    contract_.name = layer.name;
    contract_.operations = relu ? 2 : 1;
    contract_.src = {planning.formats(src)};
    contract_.dst = planning.formats(dst);
    contract_.masters = {channels, channels, channels, channels};
    contract_.grad_on_src = true;
  }

  engine::GroupTasks tasks(const engine::Operands& operands, engine::Arena& arena) const override {
    enum { kScale, kBiases, kMean, kVariance };
    const std::vector<engine::ParamPlace>& params = operands.params;
    const BatchNormLayer layer{
        name(), shape_, planning_.precision, epsilon_, relu_, params[kScale].master, params[kBiases].master};
    auto* const moments = arena.take_array<float>(moments_floats(shape_));
    engine::GroupTasks tasks;
    if (!operands.training) {
      tasks.forward.push_back(plan_batch_norm_inference(layer, operands.src[0], operands.dst, moments,
                                                        params[kMean].master, params[kVariance].master));
      return tasks;
    }
    tasks.forward.push_back(plan_batch_norm_forward(
        layer, operands.src[0], operands.dst, moments, arena.take_array<float>(partials_floats(shape_)),
        params[kMean].grad, params[kVariance].grad, operands.statistics_share));
    if (operands.grad_src[0] == nullptr && params[kScale].grad == nullptr) return tasks;
    tasks.backward.push_back(plan_batch_norm_backward(
        layer, operands.src[0], operands.grad_dst, moments, arena.take_array<float>(partials_floats(shape_)),
        params[kScale].grad, params[kBiases].grad, operands.grad_src[0]));
    return tasks;
  }

  void to_logical(std::size_t, std::span<const float> physical, std::span<float> logical) const override {
    std::copy_n(physical.begin(), logical.size(), logical.begin());
  }
  void from_logical(std::size_t, std::span<const float> logical, std::span<float> physical) const override {
    std::fill(std::copy(logical.begin(), logical.end(), physical.begin()), physical.end(), 0.0f);
  }

 private:
  float epsilon_;
  BatchNormShape shape_;
  bool relu_;
};

}  // namespace

PlannedGroupPtr plan_batch_norm_group(Planning& planning, const engine::Chain& chain) {
  const auto* const layer = chain.as<model::BatchNorm>(0);
  if (layer == nullptr) return nullptr;
  const Extent& extent = chain.in();
  const ChannelBlocks src = planning.known_blocks(chain.inputs[0].value, extent);
  const ChannelBlocks dst = planning.blocks_like(src, extent);
  const BatchNormShape shape{planning.batch, extent.height * extent.width, extent.channels, src.block,
                             dst.block};
  return std::make_unique<BatchNormGroup>(planning, *layer, shape, src.desc, dst.desc,
                                          chain.as<model::Relu>(1) != nullptr);
}

}  // namespace cifar_mpi::cpu
