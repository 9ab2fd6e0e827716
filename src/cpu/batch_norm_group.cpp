#include "cpu/batch_norm.hpp"
#include "cpu/planning.hpp"

namespace cifar_mpi::cpu {
namespace {

/// What follows the BatchNorm in the group.
struct Match {
  Activation then = Activation::none;
  bool sums = false;  ///< an Add before the activation

  std::size_t operations() const { return 1u + (sums ? 1u : 0u) + (then != Activation::none ? 1u : 0u); }
};

class BatchNormGroup final : public PlannedGroup {
 public:
  BatchNormGroup(Planning& planning, const model::BatchNorm& layer, const BatchNormShape& shape,
                 const Desc& src, const Desc& dst, Match match)
      : PlannedGroup(planning), epsilon_(layer.epsilon), shape_(shape), match_(match) {
    const auto channels = static_cast<std::size_t>(shape.channels);
    contract_.name = layer.name;
    contract_.operations = match.operations();
    contract_.src = {planning.formats(src)};
    contract_.dst = planning.formats(dst);
    contract_.masters.assign(layer.with_scale ? 4 : 3, channels);
    if (match.then != Activation::silu) {
      contract_.grad_on_src = true;
    } else if (shape.src_block == shape.dst_block) {
      contract_.grad_on_dst = 0;
    }
    if (!match.sums) return;
    contract_.src.push_back(contract_.dst);
    contract_.joins_grads = true;
    contract_.grad_on_dst = 1;
  }

  engine::GroupTasks tasks(const engine::Operands& operands, engine::Arena& arena) const override {
    const Params params(operands);
    const BatchNormLayer layer{name(),
                               shape_,
                               planning_.precision,
                               epsilon_,
                               match_.then,
                               params.scale.master,
                               params.biases.master};
    BatchNormForward forward{operands.src[0], nullptr, operands.dst,
                             arena.take_array<float>(moments_floats(shape_)), nullptr};
    if (match_.sums) forward.other = operands.src[1];
    engine::GroupTasks tasks;
    if (!operands.training) {
      tasks.forward.push_back(
          plan_batch_norm_inference(layer, forward, params.mean.master, params.variance.master));
      return tasks;
    }
    forward.partials = arena.take_array<float>(partials_floats(shape_));
    float *const mean = params.mean.grad, *const variance = params.variance.grad;
    const float share = operands.statistics_share;
    if (operands.rank_sums.memory == nullptr) {
      tasks.forward = {plan_batch_norm_forward(layer, forward, mean, variance, share)};
    } else {
      tasks.forward = plan_batch_norm_forward(layer, forward, mean, variance, share, params.mean.master,
                                              operands.rank_sums);
    }
    add_backward(layer, operands, forward.moments, arena, tasks);
    return tasks;
  }

 private:
  struct Params {
    engine::ParamPlace scale, biases, mean, variance;  ///< without a scale, that is empty
    explicit Params(const engine::Operands& operands) {
      const auto* const end = operands.params.data() + operands.params.size();
      if (operands.params.size() == 4) scale = end[-4];
      biases = end[-3];
      mean = end[-2];
      variance = end[-1];
    }
  };

  void add_backward(const BatchNormLayer& layer, const engine::Operands& operands, const float* moments,
                    engine::Arena& arena, engine::GroupTasks& tasks) const {
    const bool other_wants = match_.sums && operands.grad_src[1] != nullptr;
    const Params params(operands);
    if (operands.grad_src[0] == nullptr && !other_wants && params.biases.grad == nullptr) return;
    BatchNormBackward backward;
    backward.src = operands.src[0];
    backward.grad_dst = operands.grad_dst;
    backward.moments = moments;
    backward.partials = arena.take_array<float>(partials_floats(shape_));
    backward.grad_scale = params.scale.grad;
    backward.grad_biases = params.biases.grad;
    backward.grad_src = operands.grad_src[0];
    if (match_.then == Activation::silu) {
      backward.joined =
          backward.grad_src != nullptr ? backward.grad_src : arena.take(contract_.src[0].grad.bytes);
    }
    if (match_.sums) {
      backward.dst = operands.dst;
      backward.more_grad_dst = operands.more_grad_dst;
      backward.joined = other_wants ? operands.grad_src[1] : arena.take(contract_.dst.grad.bytes);
    }
    if (operands.rank_sums.memory == nullptr) {
      tasks.backward = {plan_batch_norm_backward(layer, backward)};
    } else {
      tasks.backward = plan_batch_norm_backward(layer, backward, operands.rank_sums);
    }
  }

  float epsilon_;
  BatchNormShape shape_;
  Match match_;
};

Match match_of(const engine::Chain& chain) {
  if (chain.as<model::Relu>(1) != nullptr) return {Activation::relu};
  if (chain.as<model::Add>(1) != nullptr && chain.as<model::Relu>(2) != nullptr)
    return {Activation::relu, true};
  const auto* const pointwise = chain.as<model::Pointwise>(1);
  const bool silu = pointwise != nullptr && pointwise->kind == model::PointwiseKind::silu;
  return {silu ? Activation::silu : Activation::none};
}

}  // namespace

PlannedGroupPtr plan_batch_norm_group(Planning& planning, const engine::Chain& chain) {
  const auto* const layer = chain.as<model::BatchNorm>(0);
  if (layer == nullptr) return nullptr;
  const Extent& extent = chain.in();
  const ChannelBlocks src = planning.known_blocks(chain.inputs[0].value, extent);
  const ChannelBlocks dst = planning.blocks_like(src, extent);
  const BatchNormShape shape{planning.batch, extent.height * extent.width, extent.channels, src.block,
                             dst.block};
  return std::make_unique<BatchNormGroup>(planning, *layer, shape, src.desc, dst.desc, match_of(chain));
}

}  // namespace cifar_mpi::cpu
