#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lower/lowered_graph.hpp"

namespace cifar_mpi::lower {

/// The flat blocks that a program works on; in evaluation there are only parameters.
struct Blocks {
  const float* params = nullptr;
  float* grads = nullptr;
  float* statistics = nullptr;  ///< of the control block
  float statistics_share = 1.0f;
  engine::ValueCounts* counts = nullptr;  ///< by layer that gives an output, see Tower::observed; null: none
};

/// Appends `more` to `tasks`.
void move_behind(std::vector<engine::Task>& tasks, std::vector<engine::Task>&& more);

/// Memory and tasks of one program of a lowered network; all it refers to outlives the tasks.
///
/// Every value and every gradient is a piece of the arena of its own, written once: a sum of gradients and a
/// masked gradient are new pieces. Which pieces lie on the same bytes is for the memory plan.
class NetworkTasks {
 public:
  NetworkTasks(const engine::TowerKernels& kernels, const LoweredGraph& graph,
               const engine::ParamLayout& layout, const Blocks& blocks, engine::Arena& arena);

  std::byte* image() const { return values_.front(); }
  engine::Logits logits() const {
    return {values_[graph_.logits], graph_.values[graph_.logits].format.value};
  }
  std::byte* grad_logits() const { return grad_logits_; }

  /// Each group in turn; in evaluation there is no backward.
  std::vector<engine::Task> prepare, forward, backward;

  /// Pieces (new, old) of which the new one may lie on the old one; see plan_memory.
  const std::vector<std::pair<std::byte*, std::byte*>>& onto() const { return onto_; }

 private:
  /// What a node's backward pass works on, and the tasks that come before it.
  struct NodeGrads {
    std::byte* dst = nullptr;
    std::byte* more_dst = nullptr;
    std::vector<std::byte*> src;
    std::vector<engine::Task> before;
  };

  void place_grads();
  void place_grads_of(std::size_t node);
  /// The gradient of a value from what its readers have left, in that order.
  std::byte* complete(std::size_t value, const std::string& name, std::vector<engine::Task>& tasks);
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
  std::vector<std::byte*> values_;               ///< by value
  std::vector<std::vector<std::byte*>> shares_;  ///< by value: what its readers leave of its gradient
  std::vector<NodeGrads> grads_;                 ///< by node
  std::size_t observed_ = 0;                     ///< layers so far
  std::byte* grad_logits_ = nullptr;
  std::vector<std::pair<std::byte*, std::byte*>> onto_;
};

}  // namespace cifar_mpi::lower
