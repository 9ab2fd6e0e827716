#include "cpu/planner.hpp"

#include <omp.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cpu/conv.hpp"
#include "cpu/conv_pool.hpp"
#include "cpu/linear.hpp"
#include "cpu/pieces.hpp"
#include "cpu/pool.hpp"

namespace cifar_mpi::cpu {
namespace {

using Type = dnnl::memory::data_type;
using Tag = dnnl::memory::format_tag;
using model::Overloaded;

/// Where a layer's parameters stand in the table.
struct ParamIndices {
  std::size_t weights = 0;
  std::size_t biases = 0;
};

ParamIndices find_params(const model::ParamTable& table, std::size_t layer) {
  const auto find = [&](bool matrix) {
    const auto it = std::find_if(table.begin(), table.end(), [&](const model::Param& param) {
      return param.layer == layer && (param.shape.rank() > 1) == matrix;
    });
    if (it == table.end())
      throw std::logic_error(concat("cpu: the table has no parameters of layer ", layer));
    return static_cast<std::size_t>(it - table.begin());
  };
  return {find(true), find(false)};
}

/// Lays one layer after another onto the chain of stages.
class Planner {
 public:
  Planner(const Dnnl& dnnl, const engine::TowerSpec& spec)
      : dnnl_(dnnl),
        net_(*spec.net),
        table_(*spec.params),
        flops_(model::forward_flops(net_)),
        batch_(spec.batch),
        type_(data_type_of(spec.precision)) {
    const Desc input = activations(batch_, net_.input, type_, Tag::nchw);
    plan_.edges.push_back({input, input, net_.input});
    plan_.params.resize(table_.size());
  }

  NetPlan run() {
    for (std::size_t i = 0; i < net_.layers.size();) i += consume(i);
    place_masks();
    return std::move(plan_);
  }

 private:
  /// Plans the longest match that starts at `layer` and returns how many layers it takes.
  std::size_t consume(std::size_t layer) {
    try {
      return std::visit(Overloaded{[&](const model::Conv2d& l) { return add_conv(l, layer); },
                                   [&](const model::Linear& l) { return add_linear(l, layer); },
                                   [&](const model::MaxPool& l) { return add_pool(l, layer); },
                                   [&](const model::LocalResponseNorm& l) { return add_norm(l, layer); },
                                   [&](const model::Relu&) { return add_relu(layer); },
                                   [&](const model::SoftmaxCrossEntropy&) { return add_logits(layer); }},
                        net_.layers[layer]);
    } catch (const dnnl::error& error) {
      throw Error(ErrorKind::usage,
                  concat("model ", net_.name, ": ", dnnl_version_text(), " has no kernel for layer ",
                         layer + 1, " on an input of ", to_string(net_.input_of(layer)), " with batch ",
                         batch_, " (", error.what(), "); change the layer or the batch"));
    }
  }

  bool is_relu(std::size_t layer) const {
    return layer < net_.layers.size() && std::holds_alternative<model::Relu>(net_.layers[layer]);
  }
  const Edge& last() const { return plan_.edges.back(); }
  Desc nhwc(const Extent& extent, Type type) const { return activations(batch_, extent, type, Tag::nhwc); }

  void add(std::string name, Edge out, Stage::Work work) {
    Stage stage{std::move(name), std::move(work)};
    out.wants_grad = last().wants_grad || affine_of(stage) != nullptr;
    plan_.edges.push_back(std::move(out));
    plan_.stages.push_back(std::move(stage));
  }

  void note(const std::string& what, const Kernel& kernel, const std::string& remark = "") {
    plan_.text += concat(what, ": ", kernel.implementation(), remark, "\n");
    plan_.scratch_bytes = std::max(plan_.scratch_bytes, kernel.scratch_bytes());
  }

  /// Turns the last edge into `wanted`, another format or type of the same values, if it is not that already.
  void require(const Desc& wanted) {
    const Edge from = last();
    if (from.value == wanted) return;
    Edge to{wanted, nhwc(from.extent, type_), from.extent};
    Reformat reformat{make_reorder(dnnl_, from.value, wanted), std::nullopt};
    const std::string name = concat("reorder ", plan_.stages.size());
    note(name + " forward", reformat.forward);
    if (from.wants_grad) {
      reformat.backward = make_reorder(dnnl_, to.grad, from.grad);
      note(name + " backward", *reformat.backward);
    }
    add(name, std::move(to), std::move(reformat));
  }
  void require_nhwc() { require(nhwc(last().extent, type_)); }

  AffinePlace place_of(std::size_t layer) const {
    AffinePlace place;
    place.batch = batch_;
    place.src = last().value;
    place.in = net_.input_of(layer);
    place.out = net_.outputs[layer];
    place.type = place.dst_type = type_;
    place.relu = is_relu(layer + 1);
    place.wants_grad_src = last().wants_grad;
    return place;
  }

  /// Finds the parameters of `affine` and records what it chose.
  void settle(const std::string& name, std::size_t layer, Affine& affine, const Desc& logical_weights) {
    const ParamIndices params = find_params(table_, layer);
    affine.weights = params.weights;
    affine.biases = params.biases;
    affine.flops = batch_ * flops_[layer].in_image;
    plan_.params[params.weights] = {affine.master, logical_weights};
    plan_.params[params.biases] = {affine.bias, affine.bias};
    // The pieces decide in which order gradients are added.
    const std::string remark =
        affine.pieces > 1 ? concat(", ", batch_ / affine.pieces, " samples at a time") : "";
    note(name + " forward", affine.kernels.forward, remark);
    note(name + " weight gradient", affine.kernels.weight_gradient, remark);
    if (affine.wants_grad_src) {
      note(name + " data gradient", affine.kernels.data_gradient, affine.is_turned() ? ", turned" : "");
    }
    for (const WeightCopy* copy : {&affine.forward_weights, &affine.backward_weights}) {
      if (copy->turning) note(name + " turn", copy->turning->unpack);
      if (copy->reorder) note(name + " prepare", *copy->reorder);
    }
  }

  void note_pool(const std::string& name, const Pool& pool) {
    note(name + " forward", pool.kernels.forward);
    note(name + " inference", pool.kernels.inference);
    note(name + " backward", pool.kernels.backward);
  }

  std::size_t add_affine(const std::string& name, std::size_t layer, Edge out, const Desc& logical_weights,
                         Affine affine) {
    settle(name, layer, affine, logical_weights);
    const std::size_t taken = affine.relu ? 2 : 1;
    add(name, std::move(out), std::move(affine));
    return taken;
  }

  /// Whether oneDNN has more than reference loops for images that lie channel by channel. Of three channels
  /// those kernels are its fastest; of four it has none for the weight gradient: 10 s a step at batch 128
  /// instead of 62 ms.
  bool has_kernels_for_planes(const model::Conv2d& conv, std::size_t layer) const {
    AffinePlace place = place_of(layer);
    place.choose_dst = true;
    const Affine affine = plan_conv(dnnl_, conv, place);
    return !affine.kernels.forward.is_reference() && !affine.kernels.weight_gradient.is_reference();
  }

  std::size_t add_conv(const model::Conv2d& conv, std::size_t layer) {
    const bool first = !last().wants_grad;
    if (!first || !has_kernels_for_planes(conv, layer)) require_nhwc();
    AffinePlace place = place_of(layer);
    place.choose_dst = first && !(place.src == nhwc(place.in, type_));
    if (!place.choose_dst) place.src = nhwc(place.in, type_);  // of one channel images are that in any order
    if (const std::size_t taken = add_conv_pool(conv, layer, place)) return taken;
    const int samples = samples_per_piece(batch_, omp_get_max_threads());
    if (!place.choose_dst && samples != batch_) {
      const Desc out = nhwc(place.out, type_);
      place.batch = samples;
      place.src = activations(samples, place.in, type_, Tag::nhwc);
      Affine affine = plan_conv(dnnl_, conv, place);
      affine.pieces = batch_ / samples;
      return add_affine(conv.name, layer, {out, out, place.out}, conv_logical_weights(conv, place.in),
                        std::move(affine));
    }
    Affine affine = plan_conv(dnnl_, conv, place);
    Edge out{affine.dst, affine.grad_dst, place.out};
    return add_affine(conv.name, layer, std::move(out), conv_logical_weights(conv, place.in),
                      std::move(affine));
  }

  /// The first convolution and its pooling in pieces; 0 where they do not stand so or the batch has no
  /// pieces.
  std::size_t add_conv_pool(const model::Conv2d& conv, std::size_t layer, AffinePlace place) {
    const std::size_t next = layer + (place.relu ? 2 : 1);
    const auto* const pool =
        next < net_.layers.size() ? std::get_if<model::MaxPool>(&net_.layers[next]) : nullptr;
    const int samples = samples_per_piece(batch_, omp_get_max_threads());
    const bool from_images = place.choose_dst && place.src == activations(batch_, place.in, type_, Tag::nchw);
    if (pool == nullptr || samples == batch_ || !from_images) return 0;
    place.batch = samples;
    place.src = activations(samples, place.in, type_, Tag::nchw);
    const Extent out = net_.outputs[next];
    std::optional<ConvPool> fused = plan_conv_pool(dnnl_, conv, *pool, place, out, batch_ / samples);
    if (!fused) return 0;
    settle(conv.name, layer, fused->conv, conv_logical_weights(conv, place.in));
    note_pool(pool->name, fused->pool);
    const Desc dst = fused->dst;
    add(conv.name + " + " + pool->name, {dst, dst, out}, std::move(*fused));
    return next + 1 - layer;
  }

  std::size_t add_linear(const model::Linear& linear, std::size_t layer) {
    require_nhwc();
    AffinePlace place = place_of(layer);
    const bool gives_logits = layer + 2 == net_.layers.size();
    if (gives_logits) place.dst_type = Type::f32;
    Edge out{nhwc(place.out, place.dst_type), nhwc(place.out, type_), place.out};
    return add_affine(linear.name, layer, std::move(out), linear_logical_weights(linear, place.in),
                      plan_linear(dnnl_, linear, place));
  }

  std::size_t add_pool(const model::MaxPool& layer, std::size_t index) {
    const Extent out = net_.outputs[index];
    Pool pool = plan_pool(dnnl_, layer, batch_, last().value, last().extent, out, type_);
    const Desc dst = pool.kernels.forward.describe(dnnl::query::dst_md);
    note_pool(layer.name, pool);
    add(layer.name, {dst, dst, out}, std::move(pool));
    return 1;
  }

  /// Channels per block of the last edge as LrnShape counts them, or 0 for a format it does not know.
  int block_of_last() const {
    const Extent extent = last().extent;
    const auto is = [&](Tag tag) { return last().value == activations(batch_, extent, type_, tag); };
    if (is(Tag::nhwc)) return extent.channels;
    if (is(Tag::nchw)) return 1;
    if (extent.channels % 16 == 0 && is(Tag::nChw16c)) return 16;
    if (extent.channels % 8 == 0 && is(Tag::nChw8c)) return 8;
    return 0;
  }

  std::size_t add_norm(const model::LocalResponseNorm& layer, std::size_t) {
    if (block_of_last() == 0) require_nhwc();
    const Extent extent = last().extent;
    const LrnShape shape{batch_, extent.height * extent.width, extent.channels, block_of_last(),
                         extent.channels};
    const Desc dst = nhwc(extent, type_);
    add(layer.name, {dst, dst, extent}, Norm{layer, shape});
    return 1;
  }

  std::size_t add_relu(std::size_t layer) {
    const Edge in = last();
    add(concat("relu ", layer), {in.value, in.value, in.extent}, Rectify{});
    return 1;
  }

  std::size_t add_logits(std::size_t) {
    require(nhwc(last().extent, Type::f32));
    return 1;
  }

  static bool ends_with_relu(const Stage& stage) {
    if (const Affine* const affine = affine_of(stage)) return affine->relu;
    return std::holds_alternative<Rectify>(stage.work);
  }

  /// Decides who masks the gradient of each ReLU's output.
  void place_masks() {
    std::vector<Stage>& stages = plan_.stages;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      std::size_t edge = s + 1;
      if (!ends_with_relu(stages[s]) || !plan_.edges[edge].wants_grad) continue;
      while (edge < stages.size() && std::holds_alternative<Pool>(stages[edge].work)) ++edge;
      Norm* const norm = edge < stages.size() ? std::get_if<Norm>(&stages[edge].work) : nullptr;
      if (norm != nullptr) {
        norm->mask_relu = true;
      } else {
        plan_.edges[edge].masked = true;
      }
    }
  }

  const Dnnl& dnnl_;
  const model::NetSpec& net_;
  const model::ParamTable& table_;
  std::vector<model::Flops> flops_;  ///< by layer
  int batch_;
  Type type_;
  NetPlan plan_;
};

}  // namespace

NetPlan plan_network(const Dnnl& dnnl, const engine::TowerSpec& spec) { return Planner(dnnl, spec).run(); }

}  // namespace cifar_mpi::cpu
