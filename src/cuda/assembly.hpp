#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cifar_mpi/engine/arena.hpp"
#include "cuda/kernels.hpp"
#include "cuda/stage.hpp"

namespace cifar_mpi::cuda {

/// Words of device memory, zero before and after every program, that the column sums of a network count in.
std::size_t counter_words(const NetPlan& plan);

/// Memory and tasks of one program of a planned network; everything it refers to outlives the tasks. Building
/// it needs no device: addresses are taken, not followed.
///
/// Training keeps the value and the gradient of every edge; a ReLU stage works on its gradient in place.
class Assembly {
 public:
  enum class Purpose { train, evaluate };
  Assembly(const NetPlan& plan, const NetKernels& kernels, Purpose purpose, engine::Arena& arena,
           unsigned* counters);

  std::byte* input() const { return values_.front(); }
  const std::byte* logits() const { return values_.back(); }
  ValueType logit_type() const { return type_of(plan_.edges.size() - 1); }
  std::byte* grad_logits() const { return grads_.back(); }

  /// Each appends tasks in the order in which they must run. `params` and `grads` are blocks of the layout.
  void prepare(const float* params, std::vector<engine::Task>& tasks) const;
  void forward(const float* params, std::vector<engine::Task>& tasks) const;
  void backward(const float* params, float* grads, std::vector<engine::Task>& tasks) const;

 private:
  /// What one stage has besides its edges.
  struct Extras {
    std::uint8_t* taps = nullptr;  ///< of a pooling; null in evaluation
    std::byte* pooled = nullptr;   ///< what a pooling gives the normalization behind it; null in evaluation
    std::byte* patches = nullptr;  ///< of a convolution as a product
    std::byte* grad_patches = nullptr;
    std::byte* turned = nullptr;           ///< its weights for the data gradient
    std::byte* library_weights = nullptr;  ///< of a convolution by cuDNN
    std::byte* library_grad = nullptr;
    unsigned* counters = nullptr;
  };

  struct Blocks {
    const float* params = nullptr;
    float* grads = nullptr;
  };

  void place_edges();
  void place_affine(const Affine& affine, const AffineKernels& kernels, Extras& extras);
  void place_extras(unsigned* counters);

  void forward_tasks(std::size_t s, const Affine& affine, const float* params,
                     std::vector<engine::Task>& tasks) const;
  void forward_tasks(std::size_t s, const Pool& pool, const float* params,
                     std::vector<engine::Task>& tasks) const;
  void forward_tasks(std::size_t s, const Norm& norm, const float* params,
                     std::vector<engine::Task>& tasks) const;
  void forward_tasks(std::size_t s, const PoolNorm& both, const float* params,
                     std::vector<engine::Task>& tasks) const;
  void forward_tasks(std::size_t s, const NormPool& both, const float* params,
                     std::vector<engine::Task>& tasks) const;
  void forward_tasks(std::size_t s, const Rectify& rectify, const float* params,
                     std::vector<engine::Task>& tasks) const;
  engine::Task library_forward(std::size_t s, const Affine& affine, const float* params) const;
  engine::Task product_forward(std::size_t s, const Affine& affine, const float* params) const;

  void backward_tasks(std::size_t s, const Affine& affine, const Blocks& blocks,
                      std::vector<engine::Task>& tasks) const;
  void backward_tasks(std::size_t s, const Pool& pool, const Blocks& blocks,
                      std::vector<engine::Task>& tasks) const;
  void backward_tasks(std::size_t s, const Norm& norm, const Blocks& blocks,
                      std::vector<engine::Task>& tasks) const;
  void backward_tasks(std::size_t s, const PoolNorm& both, const Blocks& blocks,
                      std::vector<engine::Task>& tasks) const;
  void backward_tasks(std::size_t s, const NormPool& both, const Blocks& blocks,
                      std::vector<engine::Task>& tasks) const;
  void backward_tasks(std::size_t s, const Rectify& rectify, const Blocks& blocks,
                      std::vector<engine::Task>& tasks) const;
  /// `task` is a product of `affine`; adds what it needs at least, and the workspace, of which it leaves
  /// nothing.
  engine::Task product_task(engine::Task task, const Affine& affine) const;
  engine::Task bias_gradient(std::size_t s, const Affine& affine, float* grads) const;
  engine::Task weight_gradient(std::size_t s, const Affine& affine, float* grads) const;
  void data_gradient(std::size_t s, const Affine& affine, const float* params,
                     std::vector<engine::Task>& tasks) const;

  bool training() const { return purpose_ == Purpose::train; }
  ValueType type_of(std::size_t edge) const { return plan_.edges[edge].fp32 ? ValueType::fp32 : type_; }
  std::int64_t values_in(std::size_t edge) const {
    return std::int64_t{plan_.batch} * plan_.edges[edge].extent.count();
  }
  engine::Bytes value(std::size_t edge) const;
  engine::Bytes taps(std::size_t s) const;
  engine::Bytes pooled(std::size_t s) const;
  engine::Bytes grad(std::size_t edge) const;
  engine::Bytes workspace(bool aside) const { return {scratch(aside).workspace, kernels_.workspace_bytes()}; }
  /// Parameter `p` in a block, without the padding that no kernel touches.
  engine::Bytes span_of(const float* block, std::size_t p, std::size_t floats) const;
  /// Weights as products read them: the block itself, or its copy in bf16.
  engine::Bytes weights_of(const Affine& affine, const float* params) const;
  const std::string& name(std::size_t s) const { return plan_.stages[s].name; }

  const NetPlan& plan_;
  const NetKernels& kernels_;
  Purpose purpose_;
  engine::Arena& arena_;
  ValueType type_;
  /// What kernels leave nothing in: a set for each of the two lanes on which tasks may run at once.
  struct Scratch {
    std::byte* workspace = nullptr;
    float* partials = nullptr;  ///< of the column sums; null in evaluation
  };
  const Scratch& scratch(bool aside) const { return scratch_[aside ? 1 : 0]; }
  void place_scratch();

  std::array<Scratch, 2> scratch_;
  std::byte* rounded_ = nullptr;  ///< the parameter block in bf16; null in other precisions
  std::size_t partial_floats_ = 0;
  std::vector<std::byte*> values_;  ///< by edge
  std::vector<std::byte*> grads_;   ///< by edge; null where no gradient is wanted
  std::vector<Extras> extras_;      ///< by stage
};

}  // namespace cifar_mpi::cuda
