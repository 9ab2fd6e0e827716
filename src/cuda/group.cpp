#include "cuda/group.hpp"

#include <utility>

#include "cuda/conv.hpp"
#include "cuda/lane.hpp"
#include "cuda/lrn_pool.hpp"
#include "cuda/pool.hpp"
#include "cuda/relu.hpp"

namespace cifar_mpi::cuda {
namespace {

using engine::GroupTasks;

/// A group without parameters: one task each way at most.
template <class W>
class PlainGroup final : public engine::Group {
 public:
  PlainGroup(ValueType type, engine::Contract contract, W work)
      : type_(type), contract_(std::move(contract)), work_(std::move(work)) {}
  const engine::Contract& contract() const override { return contract_; }
  GroupTasks tasks(const Operands& operands, Arena& arena) const override {
    GroupTasks tasks;
    build(work_, operands, arena, tasks);
    return tasks;
  }

 private:
  using Start = std::function<void(Lane&)>;

  Bytes x(const Operands& o, std::size_t input = 0) const {
    return {o.src[input], contract_.src[input].value.bytes};
  }
  Bytes y(const Operands& o) const { return {o.dst, contract_.dst.value.bytes}; }
  Bytes grad_x(const Operands& o) const { return {o.grad_src[0], contract_.src[0].grad.bytes}; }
  Bytes grad_y(const Operands& o) const { return {o.grad_dst, contract_.dst.grad.bytes}; }
  /// Of an input that is to be read through biases and a ReLU (join_tail).
  Activation activation(const Operands& o) const {
    return {o.mask_src, o.params.empty() ? nullptr : o.params[0].master};
  }
  Bytes bias(const Operands& o, int channels) const {
    return o.params.empty() ? Bytes{} : bytes_of(o.params[0].master, static_cast<std::size_t>(channels));
  }
  std::size_t outputs() const { return static_cast<std::size_t>(values_in(contract_.dst.value)); }

  void add_forward(GroupTasks& tasks, std::vector<Bytes> reads, std::vector<Bytes> writes,
                   Start start) const {
    tasks.forward.push_back(
        {contract_.name + " forward", std::move(reads), std::move(writes), std::move(start), {}});
  }
  void add_backward(GroupTasks& tasks, std::vector<Bytes> reads, const Operands& o, Start start) const {
    tasks.backward.push_back(
        {contract_.name + " backward", std::move(reads), {grad_x(o)}, std::move(start), {}});
  }
  /// Which place of its window each maximum was; nothing in evaluation.
  Bytes take_argmax(const Operands& o, Arena& arena) const {
    if (!o.training) return {};
    return {arena.take(outputs()), outputs()};
  }
  static std::uint8_t* argmax_at(const Bytes& argmax) {
    return reinterpret_cast<std::uint8_t*>(const_cast<std::byte*>(argmax.begin));
  }

  void build(const Pool& pool, const Operands& o, Arena& arena, GroupTasks& tasks) const {
    const Bytes argmax = take_argmax(o, arena);
    add_forward(tasks, {x(o), bias(o, pool.place.channels)}, {y(o), argmax},
                [=, type = type_, place = pool.place, read = activation(o), from = o.src[0], to = o.dst,
                 at = argmax_at(argmax)](Lane& lane) {
                  pool_forward(stream_of(lane), place, type, read, from, to, at);
                });
    if (o.grad_src[0] == nullptr) return;
    add_backward(
        tasks, {grad_y(o), argmax}, o,
        [=, type = type_, place = pool.place, grad = o.grad_dst, to = o.grad_src[0],
         at = argmax_at(argmax)](Lane& lane) { pool_backward(stream_of(lane), place, type, at, grad, to); });
  }

  void build(const Lrn& lrn, const Operands& o, Arena&, GroupTasks& tasks) const {
    const LrnShape shape{lrn.rule, lrn.pixels, lrn.channels, type_};
    const Activation read = activation(o);
    add_forward(tasks, {x(o), bias(o, lrn.channels)}, {y(o)}, [=, from = o.src[0], to = o.dst](Lane& lane) {
      lrn_forward(stream_of(lane), shape, read, from, to);
    });
    if (o.grad_src[0] == nullptr) return;
    add_backward(tasks, {x(o), bias(o, lrn.channels), grad_y(o)}, o,
                 [=, from = o.src[0], grad = o.grad_dst, to = o.grad_src[0]](Lane& lane) {
                   lrn_backward(stream_of(lane), shape, read, from, grad, to);
                 });
  }

  void build(const PoolLrn& both, const Operands& o, Arena& arena, GroupTasks& tasks) const {
    const LrnPoolShape shape{both.pool.place, both.lrn.rule, type_, activation(o)};
    const Bytes argmax = take_argmax(o, arena);
    const std::size_t size = o.training ? contract_.dst.value.bytes : 0;
    std::byte* const pooled = o.training ? arena.take(size) : nullptr;
    add_forward(tasks, {x(o), bias(o, both.lrn.channels)}, {y(o), argmax, {pooled, size}},
                [=, from = o.src[0], to = o.dst, at = argmax_at(argmax)](Lane& lane) {
                  pool_lrn_forward(stream_of(lane), shape, from, pooled, at, to);
                });
    if (o.grad_src[0] == nullptr) return;
    add_backward(tasks, {{pooled, size}, argmax, grad_y(o)}, o,
                 [=, grad = o.grad_dst, to = o.grad_src[0], at = argmax_at(argmax)](Lane& lane) {
                   pool_lrn_backward(stream_of(lane), shape, pooled, at, grad, to);
                 });
  }

  void build(const LrnPool& both, const Operands& o, Arena& arena, GroupTasks& tasks) const {
    const LrnPoolShape shape{both.pool.place, both.lrn.rule, type_, activation(o)};
    const Bytes argmax = take_argmax(o, arena);
    add_forward(tasks, {x(o), bias(o, both.lrn.channels)}, {y(o), argmax},
                [=, from = o.src[0], to = o.dst, at = argmax_at(argmax)](Lane& lane) {
                  lrn_pool_forward(stream_of(lane), shape, from, at, to);
                });
    if (o.grad_src[0] == nullptr) return;
    add_backward(tasks, {x(o), bias(o, both.lrn.channels), argmax, grad_y(o)}, o,
                 [=, from = o.src[0], grad = o.grad_dst, to = o.grad_src[0], at = argmax_at(argmax)](
                     Lane& lane) { lrn_pool_backward(stream_of(lane), shape, from, at, grad, to); });
  }

  void build(const Relu&, const Operands& o, Arena&, GroupTasks& tasks) const {
    add_forward(tasks, {x(o)}, {y(o)},
                [type = type_, count = outputs(), from = o.src[0], to = o.dst](Lane& lane) {
                  relu_forward(stream_of(lane), type, from, to, static_cast<std::int64_t>(count));
                });
  }

  void build(const Pointwise& pointwise, const Operands& o, Arena&, GroupTasks& tasks) const {
    const PointwiseShape shape{pointwise.layer, static_cast<std::int64_t>(outputs()), type_};
    add_forward(tasks, {x(o)}, {y(o)}, [=, from = o.src[0], to = o.dst](Lane& lane) {
      pointwise_forward(stream_of(lane), shape, from, to);
    });
    if (o.grad_src[0] == nullptr) return;
    add_backward(tasks, {x(o), grad_y(o)}, o,
                 [=, from = o.src[0], grad = o.grad_dst, to = o.grad_src[0]](Lane& lane) {
                   pointwise_backward(stream_of(lane), shape, from, grad, to);
                 });
  }

  void build(const Sum&, const Operands& o, Arena&, GroupTasks& tasks) const {
    add_forward(tasks, {x(o), x(o, 1)}, {y(o)},
                [type = type_, count = outputs(), a = o.src[0], b = o.src[1], to = o.dst](Lane& lane) {
                  add_values(stream_of(lane), type, a, b, to, static_cast<std::int64_t>(count));
                });
  }

  void build(const GlobalAvgPool& pool, const Operands& o, Arena&, GroupTasks& tasks) const {
    const GlobalAvgPoolShape shape{pool.batch, pool.pixels, pool.channels, type_};
    add_forward(tasks, {x(o)}, {y(o)}, [=, from = o.src[0], to = o.dst](Lane& lane) {
      global_avg_pool_forward(stream_of(lane), shape, from, to);
    });
    if (o.grad_src[0] == nullptr) return;
    add_backward(tasks, {grad_y(o)}, o, [=, grad = o.grad_dst, to = o.grad_src[0]](Lane& lane) {
      global_avg_pool_backward(stream_of(lane), shape, grad, to);
    });
  }

  void build(const Shortcut& shortcut, const Operands& o, Arena&, GroupTasks& tasks) const {
    add_forward(tasks, {x(o)}, {y(o)},
                [shape = shortcut.forward, type = type_, from = o.src[0], to = o.dst](Lane& lane) {
                  im2col(stream_of(lane), shape, type, from, to);
                });
    if (o.grad_src[0] == nullptr) return;
    add_backward(tasks, {grad_y(o)}, o,
                 [shape = shortcut.backward, type = type_, grad = o.grad_dst,
                  to = o.grad_src[0]](Lane& lane) { im2col(stream_of(lane), shape, type, grad, to); });
  }

  ValueType type_;
  engine::Contract contract_;
  W work_;
};

}  // namespace

std::unique_ptr<engine::Group> make_group(SharedPlan& shared, GroupPlan plan) {
  return std::visit(
      [&]<class W>(const W& work) -> std::unique_ptr<engine::Group> {
        if constexpr (std::is_same_v<W, Affine>) {
          auto tail = plan.tail.empty() ? nullptr : make_group(shared, std::move(plan.tail.front()));
          return make_affine_group(shared, std::move(plan.contract), work, std::move(tail));
        } else if constexpr (std::is_same_v<W, BatchNorm>) {
          return make_batch_norm_group(shared, std::move(plan.contract), work);
        } else {
          return std::make_unique<PlainGroup<W>>(shared.type(), std::move(plan.contract), work);
        }
      },
      plan.work);
}

}  // namespace cifar_mpi::cuda
