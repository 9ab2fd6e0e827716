#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/comm/world.hpp"
#include "cifar_mpi/engine/backend.hpp"
#include "cuda/library_conv.hpp"
#include "cuda/matmul.hpp"
#include "cuda/planner.hpp"

namespace cifar_mpi::cuda {

/// Records which choice of each kernel runs. A kernel's choices are its rungs: rung 0 is the first choice, and each
/// further one is slower. All ranks use the slowest choice that any of them needs, so all have the same bits.
class Ladder {
 public:
  /// The rung at which the choice of the kernel begins.
  int start_of(const std::string& kernel) const;
  /// Records that this rung, above 0, was chosen. `text` names the choice, the reason and the cost.
  void step_down(const std::string& kernel, int rung, const std::string& text);
  /// Restarts the choice of all kernels.
  void begin() { taken_.clear(); }

  /// Returns whether the ranks must choose again, from the rungs that other ranks need. Collective.
  bool agree(const comm::World& world);
  /// One line for each kernel that is not the first choice; the same on all ranks after `agree`.
  std::vector<std::string> lines() const;

 private:
  struct Step {
    int rung = 0;
    std::string text;
  };
  std::map<std::string, Step> taken_;   ///< by kernel, since `begin`
  std::map<std::string, Step> agreed_;  ///< by kernel, of all ranks
};

/// The libraries' kernels of one convolution or linear layer.
struct AffineKernels {
  std::optional<LibraryConv> library;  ///< replaces the product of each direction that it has
  Matmul forward;
  Matmul weight_gradient;
  std::optional<Matmul> data_gradient;

  /// Null if the direction is a product.
  const LibraryConv* library_for(ConvDirection direction) const {
    return library && library->has(direction) ? &*library : nullptr;
  }
};

/// How convolutions are computed. `automatic` uses cuDNN for those that suit it (odd kernel, channels in multiples of 8,
/// bf16 or tf32) and products of windows and weights for all others. The other values are for tests.
enum class ConvChoice : std::uint8_t { automatic, products, library };

/// The libraries' kernels for one network and batch. Created without a device; usable once planned.
class NetKernels {
 public:
  /// `prefix` distinguishes the kernels from those of other networks in one ladder; only the first has none.
  NetKernels(int batch, engine::Precision precision, ConvChoice choice, std::string prefix = {})
      : batch_(batch), precision_(precision), choice_(choice), prefix_(std::move(prefix)) {}
  bool begins_ladder() const { return prefix_.empty(); }

  /// Adds the kernels of a layer; their address does not change.
  const AffineKernels& add(const std::string& name, const Affine& affine);

  /// The memory that a trial of cuDNN's kernels needs for each operand; 0 if there are none.
  std::size_t library_trial_bytes() const;
  /// Plans cuDNN's kernels; directions that cuDNN cannot compute become products. Records later choices in the ladder.
  void plan_library(const Trial& trial, Ladder& ladder);
  std::size_t product_trial_bytes() const;
  void plan_products(const Trial& trial, Ladder& ladder);

  /// One line per kernel.
  std::string text() const;

 private:
  struct Entry {
    std::string name;
    AffineKernels kernels;
    bool wants_grad_x = false;
    std::size_t library_bytes = 0;
  };
  /// Calls visit("conv2 forward", product) for each product that is used.
  template <class AnyEntry, class Visit>
  static void visit_products(AnyEntry& entry, Visit visit);

  int batch_;
  engine::Precision precision_;
  ConvChoice choice_;
  std::string prefix_;
  std::deque<Entry> entries_;
};

class Device;

/// The services of a device that planning a network needs; tests implement their own.
struct PlanContext {
  std::function<Buffer(std::size_t bytes)> allocate;  ///< zeroed
  std::function<void(NetKernels& kernels)> plan;      ///< chooses the libraries' kernels
  /// The pinned word for a binding's requests.
  std::function<const int*(const std::atomic<int>& request)> request_word;
};

/// The context of a device and its ladder, which must outlive all plans.
PlanContext plan_context(Device& device, Ladder& ladder);

/// The kernels for a network; `spec.precision` is fp32, tf32 or bf16. Throws Error{usage} when the batch is
/// below 1.
engine::TowerKernels plan_kernels(const engine::TowerSpec& spec, PlanContext context,
                                  ConvChoice choice = ConvChoice::automatic);

}  // namespace cifar_mpi::cuda
