#include "cuda/planner.hpp"

#include <utility>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cuda/lrn_pool_math.hpp"

namespace cifar_mpi::cuda {
namespace {

/// A window's taps are numbered in a byte.
constexpr int kMostPoolKernel = 15;
/// Two values of every channel of a pixel must fit the shared memory of a block.
constexpr int kMostLrnChannels = 4096;

class Planner {
 public:
  Planner(const engine::Chain& chain, int batch, engine::Precision precision)
      : chain_(chain), batch_(batch), precision_(precision), type_(value_type(precision)) {}

  GroupPlan run() {
    plan_.contract.name = chain_.operation(0).name;
    for (const model::Value input : chain_.operation(0).inputs) {
      plan_.contract.src.push_back(formats(chain_.net->extent(input)));
    }
    std::visit(model::Overloaded{[&](const model::Conv2d& layer) { add_conv(layer); },
                                 [&](const model::Linear& layer) { add_linear(layer); },
                                 [&](const model::MaxPool& layer) { add_pool(layer); },
                                 [&](const model::LocalResponseNorm& layer) { add_lrn(layer); },
                                 [&](const model::Relu&) { add_relu(); },
                                 [&](const model::Pointwise& layer) { plan_.work = Pointwise{layer}; },
                                 [&](const model::Add&) { add_sum(); },
                                 [&](const model::BatchNorm& layer) { add_batch_norm(layer); },
                                 [&](const model::GlobalAvgPool&) { add_global_avg_pool(); },
                                 [&](const model::Shortcut& layer) { add_shortcut(layer); },
                                 [](const model::SoftmaxCrossEntropy&) {}},
               chain_.operation(0).layer);
    plan_.contract.dst =
        formats(chain_.out(plan_.contract.operations - 1));  // a tail's contract says that itself
    if (const auto* const affine = std::get_if<Affine>(&plan_.work); affine != nullptr && affine->logits) {
      const Extent extent{1, 1, affine->outputs};
      plan_.contract.dst = {activations(batch_, extent, ValueType::fp32), activations(batch_, extent, type_)};
    }
    return std::move(plan_);
  }

 private:
  engine::ValueFormat formats(const Extent& extent) const {
    const engine::Format format = activations(batch_, extent, type_);
    return {format, format};
  }

  void expect(bool good, const std::string& name, const std::string& text) const {
    if (!good) throw Error(ErrorKind::usage, "model ", chain_.net->name, ": ", name, " ", text);
  }

  /// The common part of both kinds of affine layer.
  void add_affine(Affine affine) {
    affine.in = chain_.in();
    affine.out = chain_.out(0);
    affine.relu = affine.biased && chain_.as<model::Relu>(1) != nullptr;
    affine.wants_grad_x = chain_.wants_grad[0];
    plan_.contract.operations = affine.relu ? 2 : 1;
    if (affine.relu &&
        (chain_.as<model::MaxPool>(2) != nullptr || chain_.as<model::LocalResponseNorm>(2) != nullptr)) {
      affine.relu = false;
      affine.has_tail = true;
      engine::Chain rest = chain_;
      rest.operations.erase(rest.operations.begin(), rest.operations.begin() + 2);
      plan_.tail.push_back(plan_group(rest, batch_, precision_));
    }
    plan_.contract.relu_at_end = affine.relu;
    // The gradient of the biases also masks; a layer has none in steps in which it does not train.
    plan_.contract.can_mask_dst = affine.relu && chain_.operation(0).trains(~std::uint64_t{0});
    plan_.contract.masters = {affine.weights_in_memory()};
    if (affine.biased) plan_.contract.masters.push_back(static_cast<std::size_t>(affine.outputs));
    plan_.work = affine;
  }

  void add_conv(const model::Conv2d& conv) {
    Affine affine;
    affine.outputs = affine.columns = conv.out_channels;
    affine.kernel = conv.kernel;
    affine.stride = conv.stride;
    affine.before = model::padding_of(conv, chain_.in().height).before;
    affine.biased = conv.with_bias;
    affine.inner = conv.kernel * conv.kernel * chain_.in().channels;
    affine.row = round_up(affine.inner, kIm2colGroup);
    add_affine(affine);
  }

  void add_linear(const model::Linear& linear) {
    Affine affine;
    affine.columns = linear.outputs;
    affine.inner = affine.row = chain_.in().count();
    affine.biased = linear.with_bias;
    affine.logits = chain_.operation(0).output == chain_.net->logits();
    const bool pads = affine.logits && type_ == ValueType::bf16;
    affine.outputs = pads ? round_up(affine.columns, kIm2colGroup) : affine.columns;
    add_affine(affine);
  }

  /// The pooling that is the i-th of the chain.
  Pool make_pool(const model::MaxPool& pool, std::size_t i) const {
    expect(pool.kernel <= kMostPoolKernel, pool.name,
           concat("has a window of ", pool.kernel, ", but the cuda kernels take at most ", kMostPoolKernel));
    const Extent in = i == 0 ? chain_.in() : chain_.out(i - 1), out = chain_.out(i);
    const model::Padding y = model::padding_of(pool, in.height), x = model::padding_of(pool, in.width);
    return {{batch_, in.height, in.width, out.height, out.width, in.channels, pool.kernel, pool.stride,
             y.before, x.before}};
  }

  Lrn make_lrn(const model::LocalResponseNorm& lrn, std::size_t i) const {
    const Extent& extent = chain_.out(i);
    expect(
        extent.channels <= kMostLrnChannels, lrn.name,
        concat("has ", extent.channels, " channels, but the cuda kernels take at most ", kMostLrnChannels));
    return {{lrn.depth_radius, lrn.bias, lrn.alpha, lrn.beta},
            std::int64_t{batch_} * extent.height * extent.width,
            extent.channels};
  }

  void take_two(const std::string& first, const std::string& second, Work work) {
    plan_.contract.name = concat(first, " and ", second);
    plan_.contract.operations = 2;
    plan_.work = work;
  }

  void add_pool(const model::MaxPool& pool) {
    plan_.contract.mask_src = engine::ReluMask::takes;
    const Pool made = make_pool(pool, 0);
    plan_.work = made;
    const auto* const lrn = chain_.as<model::LocalResponseNorm>(1);
    if (lrn == nullptr) return;
    const Lrn after = make_lrn(*lrn, 1);
    if (fits_lrn_pool(made.place, after.rule)) take_two(pool.name, lrn->name, PoolLrn{made, after});
  }

  void add_lrn(const model::LocalResponseNorm& lrn) {
    plan_.contract.mask_src = engine::ReluMask::takes;
    const Lrn made = make_lrn(lrn, 0);
    plan_.work = made;
    const auto* const pool = chain_.as<model::MaxPool>(1);
    if (pool == nullptr) return;
    const Pool after = make_pool(*pool, 1);
    if (fits_lrn_pool(after.place, made.rule)) take_two(lrn.name, pool->name, LrnPool{made, after});
  }

  void add_relu() {
    plan_.contract.relu_at_end = plan_.contract.hands_grad_on = true;
    plan_.work = Relu{};
  }

  void add_sum() {
    plan_.contract.hands_grad_on = true;
    plan_.work = Sum{};
  }

  void add_batch_norm(const model::BatchNorm& layer) {
    const Extent& in = chain_.in();
    const bool relu = chain_.as<model::Relu>(1) != nullptr;
    plan_.contract.operations = relu ? 2 : 1;
    plan_.contract.masters.assign(layer.with_scale ? 4 : 3, static_cast<std::size_t>(in.channels));
    plan_.work = BatchNorm{std::int64_t{batch_} * in.height * in.width, in.channels, layer.epsilon, relu};
  }

  void add_global_avg_pool() {
    const Extent& in = chain_.in();
    plan_.work = GlobalAvgPool{batch_, in.height * in.width, in.channels};
  }

  void add_shortcut(const model::Shortcut& layer) {
    const Extent &in = chain_.in(), &out = chain_.out(0);
    plan_.work = Shortcut{{batch_, in.height, in.width, in.channels, 1, 0, out.channels, layer.stride, 1,
                           out.height, out.width},
                          {batch_, out.height, out.width, out.channels, 1, 0, in.channels, 1, layer.stride,
                           in.height, in.width}};
  }

  const engine::Chain& chain_;
  int batch_;
  engine::Precision precision_;
  ValueType type_;
  GroupPlan plan_;
};

}  // namespace

engine::Format activations(int batch, const Extent& extent, ValueType type) {
  return {static_cast<int>(type),
          static_cast<std::size_t>(batch) * static_cast<std::size_t>(extent.count()) * bytes_per(type)};
}

ValueType type_of(const engine::Format& format) { return static_cast<ValueType>(format.id); }

std::int64_t values_in(const engine::Format& format) {
  return static_cast<std::int64_t>(format.bytes / bytes_per(type_of(format)));
}

GroupPlan plan_group(const engine::Chain& chain, int batch, engine::Precision precision) {
  return Planner(chain, batch, precision).run();
}

}  // namespace cifar_mpi::cuda
