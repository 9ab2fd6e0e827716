#include <iterator>
#include <utility>

#include "cuda/planner.hpp"

namespace cifar_mpi::cuda {
namespace {

using engine::Operands;
using engine::Task;

void append(std::vector<Task>& tasks, std::vector<Task>&& more) {
  tasks.insert(tasks.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

class TailGroup final : public engine::Group {
 public:
  TailGroup(std::unique_ptr<engine::Group> layer, std::unique_ptr<engine::Group> tail,
            std::function<bool()> leaves_bias)
      : layer_(std::move(layer)),
        tail_(std::move(tail)),
        leaves_bias_(std::move(leaves_bias)),
        contract_(layer_->contract()) {
    contract_.operations += tail_->contract().operations;
    contract_.dst = tail_->contract().dst;
  }

  const engine::Contract& contract() const override { return contract_; }

  engine::GroupTasks tasks(const Operands& o, engine::Arena& arena) const override {
    const engine::ValueFormat& between = layer_->contract().dst;
    Operands layer = o, tail = o;
    layer.dst = arena.take(between.value.bytes);
    if (o.grad_dst != nullptr) layer.grad_dst = arena.take(between.grad.bytes);
    tail.src = {layer.dst};
    tail.grad_src = {layer.grad_dst};
    tail.params.clear();
    if (leaves_bias_()) tail.params.push_back(o.params[1]);
    tail.mask_src = true;
    engine::GroupTasks tasks = layer_->tasks(layer, arena), after = tail_->tasks(tail, arena);
    append(tasks.forward, std::move(after.forward));
    append(after.backward, std::move(tasks.backward));
    tasks.backward = std::move(after.backward);
    return tasks;
  }

  void to_logical(std::size_t part, std::span<const float> physical,
                  std::span<float> logical) const override {
    layer_->to_logical(part, physical, logical);
  }
  void from_logical(std::size_t part, std::span<const float> logical,
                    std::span<float> physical) const override {
    layer_->from_logical(part, logical, physical);
  }

 private:
  std::unique_ptr<engine::Group> layer_, tail_;
  std::function<bool()> leaves_bias_;
  engine::Contract contract_;
};

}  // namespace

std::unique_ptr<engine::Group> join_tail(std::unique_ptr<engine::Group> layer,
                                         std::unique_ptr<engine::Group> tail,
                                         std::function<bool()> leaves_bias) {
  return std::make_unique<TailGroup>(std::move(layer), std::move(tail), std::move(leaves_bias));
}

}  // namespace cifar_mpi::cuda
