#include <algorithm>
#include <optional>
#include <utility>

#include "cifar_mpi/base/text.hpp"
#include "cpu/affine_group.hpp"
#include "cpu/conv.hpp"
#include "cpu/image_conv/image_conv.hpp"
#include "cpu/planning.hpp"

namespace cifar_mpi::cpu {
namespace {

using engine::Arena;
using engine::Operands;
using Tag = dnnl::memory::format_tag;

/// Parameters lie in memory in logical order.
class ImageConvGroup final : public PlannedGroup {
 public:
  ImageConvGroup(Planning& planning, const model::Conv2d& layer, const std::string& pool,
                 const ImageConv& conv)
      : PlannedGroup(planning), conv_(conv) {
    contract_.name = layer.name + " + " + pool;
    contract_.operations = conv.shape.relu ? 3 : 2;
    contract_.relu_at_end = conv.shape.relu;
    contract_.masters = {conv.shape.weight_floats()};
    planning.weights[layer.name] = {conv_logical_weights(layer, conv.shape.in)};
    if (layer.with_bias) contract_.masters.push_back(static_cast<std::size_t>(layer.out_channels));
    contract_.src = {planning.formats(activations(planning.batch, conv.shape.in, planning.type, Tag::nchw))};
    contract_.dst = planning.formats(planning.nhwc(conv.shape.pooled()));
    planning.text += concat(contract_.name, ": own kernels for few channels, ", name_of(conv.set), '\n');
  }

  engine::GroupTasks tasks(const Operands& operands, Arena& arena) const override {
    const bool wants_gradient = operands.params[0].grad != nullptr;
    engine::GroupTasks tasks;
    const float* weights = weights_of(operands);
    if (conv_.precision == engine::Precision::bf16) {
      auto* const rounded = arena.take_array<float>(conv_.shape.weight_floats());
      tasks.prepare.push_back(plan_image_conv_weights(name() + " prepare", conv_, weights, rounded));
      weights = rounded;
    }
    ImageConvMemory memory;
    memory.src = operands.src[0];
    memory.dst = operands.dst;
    memory.grad_dst = operands.grad_dst;
    memory.scratch = arena.take_array<float>(conv_.forward_scratch());
    if (wants_gradient) memory.choices = arena.take_array<std::uint8_t>(conv_.choices());
    tasks.forward.push_back(
        plan_image_conv_forward(name() + " forward", conv_, memory, weights, biases_of(operands)));
    if (!wants_gradient) return tasks;
    memory.scratch = arena.take_array<float>(conv_.gradient_scratch());
    memory.partial = arena.take_array<float>(conv_.partial_floats());
    tasks.backward.push_back(plan_image_conv_gradient(name() + " weight gradient", conv_, memory,
                                                      operands.params[0].grad, grad_biases_of(operands)));
    return tasks;
  }

 private:
  ImageConv conv_;
};

/// Speed-up of both passes over oneDNN 2.6 with the same instructions, on one thread, at 24x24 and batch 128
/// unless noted (a Xeon with two 512-bit pipes, beside other work; oneDNN's convolution is followed by its
/// own pooling, which takes twice our time with AVX2):
///
///   channels, kernel, pooling (size/stride)          AVX-512  AVX2
///   3 to 64, 5x5, 3/2, the tutorial's                    2.1
///   the same with a batch of 1, of 4                1.9, 2.1   2.1
///   3 to 64, 3x3, 3/2; 7x7                          2.7, 1.7   3.1
///   3 to 16, to 32, to 128, 5x5, 3/2           1.5, 1.5, 2.4   2.0
///   1 to 64, 5x5, 3/2                                    3.2   3.0
///   3 to 64, 5x5, pooling 3/1, as many gradients         1.4   1.4
///
/// The first row on Zen 4 (256-bit pipes), with our pooling on both sides, the minimum of 12 and 16
/// alternating runs: 1.34, AVX2 1.38. All of it comes from the weight gradient (2.05, 1.6). In bf16 0.97:
/// oneDNN's forward pass multiplies bf16 and takes 0.7 of our time, its gradient 1.6 times ours. AVX2 has no
/// table of 16 candidates.
bool is_faster(const ImageConvShape& shape, VectorSet set) {
  constexpr int kMostChannels = 4;
  constexpr int kLeastKernel = 3, kMostKernel = 7;
  return set != VectorSet::portable && shape.in.channels <= kMostChannels && shape.kernel >= kLeastKernel &&
         shape.kernel <= kMostKernel && shape.pool_kernel * shape.pool_kernel <= lanes_of(set) + 1;
}

/// The widest vectors that the output channels fill and that have kernels for the shape.
std::optional<VectorSet> set_for(const ImageConvShape& shape) {
  const std::vector<VectorSet> sets = vector_sets_here();
  const auto widest = std::find_if(sets.rbegin(), sets.rend(), [&](VectorSet set) {
    return shape.out_channels % lanes_of(set) == 0 && is_faster(shape, set);
  });
  return widest == sets.rend() ? std::nullopt : std::optional(*widest);
}

}  // namespace

PlannedGroupPtr plan_image_conv_group(Planning& planning, const engine::Chain& chain) {
  const auto* const layer = chain.as<model::Conv2d>(0);
  const bool relu = chain.as<model::Relu>(1) != nullptr;
  const auto* const pool = chain.as<model::MaxPool>(relu ? 2 : 1);
  if (planning.conv == engine::ConvMethod::direct || layer == nullptr || pool == nullptr) return nullptr;
  const bool reads_images =
      !chain.wants_grad[0] && planning.is(planning.desc(chain.inputs[0].value), chain.in(), Tag::nchw);
  if (layer->valid || pool->valid) return nullptr;
  if (!reads_images || layer->stride != 1 || pool->kernel > kMostPoolKernel) return nullptr;
  ImageConv conv;
  conv.shape = {chain.in(), layer->out_channels, layer->kernel, pool->kernel, pool->stride, relu};
  const std::optional<VectorSet> set = set_for(conv.shape);
  if (!set) return nullptr;
  conv.precision = planning.precision;
  conv.set = *set;
  conv.batch = planning.batch;
  conv.threads = planning.threads;
  conv.forward = image_forward(*set, planning.precision);
  conv.gradient = image_gradient(*set, planning.precision);
  return std::make_unique<ImageConvGroup>(planning, *layer, pool->name, conv);
}

}  // namespace cifar_mpi::cpu
