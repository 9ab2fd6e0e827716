#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cifar_mpi/engine/arena.hpp"
#include "cpu/conv_pool.hpp"
#include "cpu/planner.hpp"

namespace cifar_mpi::cpu {

/// Memory and tasks of one program of a planned network; everything it refers to outlives it, the tasks need
/// only the arena and the blocks.
///
/// Training keeps the value of every edge for the backward pass. Gradients live in two buffers by turns, for
/// only the gradients on both sides of a stage are alive at once; one whose value nobody reads any more lies
/// on that value instead. Evaluation puts the values themselves into two buffers.
class Assembly {
 public:
  enum class Purpose { train, evaluate };
  Assembly(const Dnnl& dnnl, const NetPlan& plan, const engine::ParamLayout& layout,
           engine::Precision precision, Purpose purpose, engine::Arena& arena);

  std::byte* input() const { return values_.front(); }
  const float* logits() const { return reinterpret_cast<const float*>(values_.back()); }
  std::byte* grad_logits() const { return grads_.back(); }

  /// Each appends tasks in the order in which they must run. `params` and `grads` are blocks of the layout.
  void prepare(const float* params, std::vector<engine::Task>& tasks);
  void forward(const float* params, std::vector<engine::Task>& tasks) const;
  void backward(float* grads, std::vector<engine::Task>& tasks) const;

 private:
  /// What one stage has besides its edges.
  struct Extras {
    const void* forward_weights = nullptr;
    const void* backward_weights = nullptr;
    std::byte* workspace = nullptr;  ///< of a pooling; null in evaluation
    std::byte* piece = nullptr;      ///< of a ConvPool
    std::byte* partial = nullptr;    ///< gradients of one piece; null in evaluation
  };

  void place_extras();
  void place_training_values();
  void place_evaluation_values();
  void place_grads();
  AffineMemory affine_memory(std::size_t s) const;
  ConvPoolMemory conv_pool_memory(std::size_t s) const;
  bool value_is_free(std::size_t edge) const;
  const void* prepare_copy(const std::string& name, const Affine& affine, const WeightCopy& copy,
                           const float* master, std::vector<engine::Task>& tasks);

  engine::Task forward_task(std::size_t s, const Affine& affine, const float* params) const;
  engine::Task forward_task(std::size_t s, const Pool& pool, const float* params) const;
  engine::Task forward_task(std::size_t s, const ConvPool& fused, const float* params) const;
  engine::Task forward_task(std::size_t s, const Norm& norm, const float* params) const;
  engine::Task forward_task(std::size_t s, const Rectify& rectify, const float* params) const;
  engine::Task forward_task(std::size_t s, const Reformat& reformat, const float* params) const;

  void backward_tasks(std::size_t s, const Affine& affine, float* grads,
                      std::vector<engine::Task>& tasks) const;
  void backward_tasks(std::size_t s, const Pool& pool, float* grads, std::vector<engine::Task>& tasks) const;
  void backward_tasks(std::size_t s, const ConvPool& fused, float* grads,
                      std::vector<engine::Task>& tasks) const;
  void backward_tasks(std::size_t s, const Norm& norm, float* grads, std::vector<engine::Task>& tasks) const;
  void backward_tasks(std::size_t s, const Rectify& rectify, float* grads,
                      std::vector<engine::Task>& tasks) const;
  void backward_tasks(std::size_t s, const Reformat& reformat, float* grads,
                      std::vector<engine::Task>& tasks) const;
  engine::Task mask_task(std::size_t edge) const;

  std::size_t values_in(const Desc& desc) const;
  const std::string& name(std::size_t s) const { return plan_.stages[s].name; }

  const Dnnl& dnnl_;
  const NetPlan& plan_;
  const engine::ParamLayout& layout_;
  engine::Precision precision_;
  Purpose purpose_;
  engine::Arena& arena_;
  std::byte* scratch_ = nullptr;
  std::vector<std::byte*> values_;  ///< by edge
  std::vector<std::byte*> grads_;   ///< by edge; null where no gradient is wanted
  std::vector<Extras> extras_;      ///< by stage
};

}  // namespace cifar_mpi::cpu
