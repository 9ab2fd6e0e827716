#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "lower/lowered_graph.hpp"

namespace cifar_mpi::lower {

/// The flat blocks that a program uses; in evaluation only parameters.
struct Blocks {
  const float* params = nullptr;
  float* grads = nullptr;
  float* statistics = nullptr;  ///< of the control block
  float statistics_share = 1.0f;
  engine::RankSums rank_sums = {};
  engine::ValueCounts* counts = nullptr;  ///< by observed layer, see Tower::observed; null: none
  std::vector<bool> trains = {};          ///< by parameter
  std::vector<bool> wants_grad = {};      ///< by value of the network
};

/// Appends `more` to `tasks`.
void move_behind(std::vector<engine::Task>& tasks, std::vector<engine::Task>&& more);

/// Memory and tasks of one program of a lowered network; everything it refers to must outlive the tasks.
///
/// Every value and every gradient is its own piece of the arena, written once: a sum of gradients and a
/// masked gradient are new pieces. The memory plan decides which pieces share bytes.
class NetworkTasks {
 public:
  NetworkTasks(const engine::TowerKernels& kernels, const LoweredGraph& graph,
               const engine::ParamLayout& layout, const Blocks& blocks, engine::Arena& arena);

  std::byte* image() const { return values_.front(); }
  engine::Logits logits() const {
    return {values_[graph_.logits], graph_.values[graph_.logits].format.value};
  }
  std::byte* grad_logits() const { return grad_logits_; }

  /// The tasks of each group in order; in evaluation there is no backward.
  std::vector<engine::Task> prepare, forward, backward;

  /// Pairs of pieces (new, old) that may share bytes; see plan_memory.
  const std::vector<std::pair<std::byte*, std::byte*>>& onto() const { return onto_; }

 private:
  /// The gradients of a node's backward pass, and the tasks that come before it.
  struct NodeGrads {
    std::byte* dst = nullptr;
    std::byte* more_dst = nullptr;
    std::vector<std::byte*> src;
    std::vector<engine::Task> before;
  };

  void place_grads();
  void place_grads_of(std::size_t node);
  /// Sums the gradient of a value from the shares of its readers, in their order.
  std::byte* complete(std::size_t value, const std::string& name, std::vector<engine::Task>& tasks);
  bool trains_some(const Node& node) const;
  bool wants_grad(std::size_t value) const { return blocks_.wants_grad[graph_.values[value].of]; }
  engine::Operands operands_of(std::size_t node) const;
  void append_tasks(std::size_t node);
  void append_observer(const Node& node);

  const engine::TowerKernels& kernels_;
  const LoweredGraph& graph_;
  const engine::ParamLayout& layout_;
  Blocks blocks_;
  engine::Arena& arena_;
  const std::byte* copy_ = nullptr;  ///< of the parameter block
  std::size_t bytes_per_float_ = 0;
  std::vector<std::byte*> values_;  ///< by value
  std::vector<std::vector<std::byte*>>
      shares_;                    ///< by value: the parts of its gradient that its readers write
  std::vector<NodeGrads> grads_;  ///< by node
  std::size_t observed_ = 0;      ///< layers so far
  std::byte* grad_logits_ = nullptr;
  std::vector<std::pair<std::byte*, std::byte*>> onto_;
};

}  // namespace cifar_mpi::lower
