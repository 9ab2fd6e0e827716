#include "cuda/planner.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cuda/norm_pool_math.hpp"

namespace cifar_mpi::cuda {
namespace {

using model::Overloaded;

/// A window's taps are numbered in a byte.
constexpr int kMostPoolKernel = 15;
/// Two values of every channel of a pixel must fit the shared memory of a block.
constexpr int kMostNormChannels = 4096;

std::size_t find_param(const model::ParamTable& table, std::size_t layer, bool matrix) {
  const auto it = std::find_if(table.begin(), table.end(), [&](const model::Param& param) {
    return param.layer == layer && (param.shape.rank() > 1) == matrix;
  });
  if (it == table.end()) throw std::logic_error(concat("cuda: the table has no parameters of layer ", layer));
  return static_cast<std::size_t>(it - table.begin());
}

class Planner {
 public:
  explicit Planner(const engine::TowerSpec& spec)
      : net_(*spec.net), table_(*spec.params), flops_(model::forward_flops(net_)) {
    plan_.batch = spec.batch;
    plan_.classes = spec.net->classes;
    plan_.precision = spec.precision;
    plan_.edges.push_back({net_.input});
  }

  NetPlan run() {
    for (std::size_t i = 0; i < net_.layers.size();) i += consume(i);
    place_masks();
    lay_out();
    return std::move(plan_);
  }

 private:
  /// Plans the longest match that starts at `layer` and returns how many layers it takes.
  std::size_t consume(std::size_t layer) {
    return std::visit(Overloaded{[&](const model::Conv2d& l) { return add_conv(l, layer); },
                                 [&](const model::Linear& l) { return add_linear(l, layer); },
                                 [&](const model::MaxPool& l) { return add_pool(l, layer); },
                                 [&](const model::LocalResponseNorm& l) { return add_norm(l, layer); },
                                 [&](const model::Relu&) { return add_relu(layer); },
                                 [&](const model::SoftmaxCrossEntropy&) { return std::size_t{1}; }},
                      net_.layers[layer]);
  }

  void expect(bool good, const std::string& name, const std::string& text) const {
    if (!good) throw Error(ErrorKind::usage, concat("model ", net_.name, ": ", name, " ", text));
  }

  bool is_relu(std::size_t layer) const {
    return layer < net_.layers.size() && std::holds_alternative<model::Relu>(net_.layers[layer]);
  }

  void add(std::string name, Extent out, Stage::Work work) {
    Edge edge{out};
    const auto* const affine = std::get_if<Affine>(&work);
    edge.wants_grad = plan_.edges.back().wants_grad || affine != nullptr;
    edge.fp32 = affine != nullptr && affine->logits;
    plan_.edges.push_back(edge);
    plan_.stages.push_back({std::move(name), std::move(work)});
  }

  /// What both kinds of affine layer have; returns how many layers it takes.
  std::size_t add_affine(const std::string& name, std::size_t layer, Affine affine) {
    affine.weights = find_param(table_, layer, true);
    affine.biases = find_param(table_, layer, false);
    affine.in = net_.input_of(layer);
    affine.flops = flops_[layer].in_image;
    affine.relu = is_relu(layer + 1);
    affine.wants_grad_x = plan_.edges.back().wants_grad;
    const Extent out = net_.outputs[layer];
    const std::size_t taken = affine.relu ? 2 : 1;
    add(name, out, affine);
    return taken;
  }

  std::size_t add_conv(const model::Conv2d& conv, std::size_t layer) {
    Affine affine;
    const model::SamePadding padding = model::same_padding(conv.kernel, conv.kernel, 1);
    affine.outputs = conv.out_channels;
    affine.kernel = conv.kernel;
    affine.before = padding.before;
    affine.after = padding.after;
    affine.inner = conv.kernel * conv.kernel * net_.input_of(layer).channels;
    affine.row = round_up(affine.inner, kPatchGroup);
    return add_affine(conv.name, layer, affine);
  }

  std::size_t add_linear(const model::Linear& linear, std::size_t layer) {
    Affine affine;
    affine.outputs = linear.outputs;
    affine.inner = affine.row = net_.input_of(layer).count();
    affine.logits = layer + 2 == net_.layers.size();
    return add_affine(linear.name, layer, affine);
  }

  Pool make_pool(const model::MaxPool& pool, std::size_t layer) const {
    expect(pool.kernel <= kMostPoolKernel, pool.name,
           concat("has a window of ", pool.kernel, ", but the cuda kernels take at most ", kMostPoolKernel));
    const Extent in = net_.input_of(layer), out = net_.outputs[layer];
    const model::SamePadding y = model::same_padding(in.height, pool.kernel, pool.stride);
    const model::SamePadding x = model::same_padding(in.width, pool.kernel, pool.stride);
    return {{plan_.batch, in.height, in.width, out.height, out.width, in.channels, pool.kernel, pool.stride,
             y.before, x.before}};
  }

  Norm make_norm(const model::LocalResponseNorm& norm, std::size_t layer) const {
    const int channels = net_.input_of(layer).channels;
    expect(channels <= kMostNormChannels, norm.name,
           concat("has ", channels, " channels, but the cuda kernels take at most ", kMostNormChannels));
    return {{norm.depth_radius, norm.bias, norm.alpha, norm.beta}};
  }

  template <class Layer>
  const Layer* layer_as(std::size_t layer) const {
    return layer < net_.layers.size() ? std::get_if<Layer>(&net_.layers[layer]) : nullptr;
  }

  std::size_t add_pool(const model::MaxPool& pool, std::size_t layer) {
    const Pool made = make_pool(pool, layer);
    const auto* const norm = layer_as<model::LocalResponseNorm>(layer + 1);
    if (norm != nullptr && fits_norm_pool(made.place, make_norm(*norm, layer + 1).rule)) {
      add(concat(pool.name, " and ", norm->name), net_.outputs[layer + 1],
          PoolNorm{made, make_norm(*norm, layer + 1)});
      return 2;
    }
    add(pool.name, net_.outputs[layer], made);
    return 1;
  }

  std::size_t add_norm(const model::LocalResponseNorm& norm, std::size_t layer) {
    const Norm made = make_norm(norm, layer);
    if (const auto* const pool = layer_as<model::MaxPool>(layer + 1)) {
      const Pool behind = make_pool(*pool, layer + 1);
      if (fits_norm_pool(behind.place, made.rule)) {
        add(concat(norm.name, " and ", pool->name), net_.outputs[layer + 1], NormPool{made, behind});
        return 2;
      }
    }
    add(norm.name, net_.outputs[layer], made);
    return 1;
  }

  std::size_t add_relu(std::size_t layer) {
    add(concat("relu ", layer), net_.outputs[layer], Rectify{});
    return 1;
  }

  /// Where a stage notes that it masks for the ReLU before it; null where it does not.
  static bool* mask_of(Stage::Work& work) {
    return std::visit(
        Overloaded{[](Affine&) -> bool* { return nullptr; }, [](Rectify&) -> bool* { return nullptr; },
                   [](Pool& pool) { return &pool.relu; }, [](Norm& norm) { return &norm.relu; },
                   [](PoolNorm& both) { return &both.pool.relu; },
                   [](NormPool& both) { return &both.norm.relu; }},
        work);
  }

  /// Decides who masks the gradient of each ReLU's output.
  void place_masks() {
    std::vector<Stage>& stages = plan_.stages;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      auto* const affine = std::get_if<Affine>(&stages[s].work);
      auto* const rectify = std::get_if<Rectify>(&stages[s].work);
      if (rectify == nullptr && (affine == nullptr || !affine->relu)) continue;
      Stage* const next = s + 1 < stages.size() ? &stages[s + 1] : nullptr;
      bool* const takes = next != nullptr ? mask_of(next->work) : nullptr;
      (takes != nullptr ? *takes : affine != nullptr ? affine->masks : rectify->masks) = true;
    }
  }

  /// Parameters in the order of the table.
  void lay_out() {
    std::vector<std::size_t> floats(table_.size(), 0);
    for (const Stage& stage : plan_.stages) {
      const auto* const affine = std::get_if<Affine>(&stage.work);
      if (affine == nullptr) continue;
      floats[affine->weights] =
          static_cast<std::size_t>(affine->row) * static_cast<std::size_t>(affine->outputs);
      floats[affine->biases] = static_cast<std::size_t>(affine->outputs);
    }
    for (const std::size_t count : floats) append(plan_.layout, count);
  }

  const model::NetSpec& net_;
  const model::ParamTable& table_;
  std::vector<model::Flops> flops_;  ///< by layer
  NetPlan plan_;
};

}  // namespace

NetPlan plan_network(const engine::TowerSpec& spec) {
  if (spec.batch < 1) {
    throw Error(ErrorKind::usage,
                concat("a step needs at least 1 sample per rank, found a batch of ", spec.batch));
  }
  return Planner(spec).run();
}

}  // namespace cifar_mpi::cuda
