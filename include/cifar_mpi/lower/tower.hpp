#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cifar_mpi/engine/arena.hpp"
#include "cifar_mpi/engine/backend.hpp"

/// Lowers a network to the tasks of a step, independent of the device.
namespace cifar_mpi::lower {

struct LoweredGraph;

/// One network planned for one batch size on one backend. Its kernel plans live as long as it does; tasks
/// refer to them.
class Tower {
 public:
  /// Plans the network. `spec.like` must be of a tower whose network differs only in extents; this tower then has its layout
  /// and its order of every parameter's values. Throws Error{usage} when a layer has no kernel or `spec.batch` is below 1.
  Tower(engine::Backend& backend, const engine::TowerSpec& spec);
  /// The same with existing kernels.
  Tower(engine::TowerKernels kernels, const engine::TowerSpec& spec);
  ~Tower();
  Tower(const Tower&) = delete;
  Tower& operator=(const Tower&) = delete;

  const engine::ParamLayout& layout() const { return layout_; }
  /// For TowerSpec::like.
  const engine::Kernels& kernels() const { return *kernels_.kernels; }
  /// Of the images.
  const Extent& input() const { return spec_.net->input; }
  /// Throws std::logic_error, which names the parameter, unless the values of all lie in memory as those of `other`.
  void require_same_memory(const Tower& other) const;
  /// Kernel choices that affect bits, one per line ("conv2 forward: jit:avx512_core"), for the log and the
  /// checkpoint.
  const std::string& plan_text() const { return plan_text_; }
  /// Reorders parameter `p` between its span of a block (host memory) and logical order. `from_logical`
  /// zeroes padding.
  void to_logical(std::size_t p, std::span<const float> physical, std::span<float> logical) const;
  void from_logical(std::size_t p, std::span<const float> logical, std::span<float> physical) const;

  /// The places of the values of parameter `p` in its span, which may have padding.
  std::vector<engine::ValueRun> values_of(std::size_t p) const;
  /// The layers whose whole output is stored in memory, in order; an output that a fused kernel consumes piece by piece
  /// is not. A ReLU at the end of a group has the name of the layer before it, whose output then is that of the ReLU.
  std::vector<std::string> observed() const;

  /// The step of one tower, in order: control block, weight preparation, input, forward, loss, backward; the memory
  /// between them is one piece of `arena`. Throws Error{usage} if BatchNorm has only one value per channel.
  std::vector<engine::Task> train_tasks(const engine::TrainBinding& binding, engine::Arena& arena) const;
  /// Weight preparation, input, forward and predictions.
  std::vector<engine::Task> evaluate_tasks(const engine::EvaluateBinding& binding,
                                           engine::Arena& arena) const;

 private:
  /// The group of a parameter, and the parameter's index there.
  struct Home {
    std::size_t node = 0;
    std::size_t part = 0;
  };
  void lay_out();
  void require_statistics(int ranks) const;
  void check_sizes(std::size_t p, std::size_t physical, std::size_t logical) const;

  engine::TowerSpec spec_;
  engine::TowerKernels kernels_;
  std::unique_ptr<LoweredGraph> graph_;
  std::vector<Home> homes_;  ///< by ParamTable index
  engine::ParamLayout layout_;
  std::string plan_text_;
};

}  // namespace cifar_mpi::lower
