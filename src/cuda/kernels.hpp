#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cifar_mpi/comm/world.hpp"
#include "cuda/library_conv.hpp"
#include "cuda/matmul.hpp"
#include "cuda/planner.hpp"

namespace cifar_mpi::cuda {

/// How a network's kernels are chosen where the first choice does not run. The choices of a kernel are its rungs: 0 is the
/// first choice, each further one is slower. All ranks take the lowest rung that any of them needs, so that all have the same
/// bits.
class Ladder {
 public:
  /// The rung from which to choose the kernel.
  int start_of(const std::string& kernel) const;
  /// The kernel was chosen on this rung, above 0. `text` says what is taken, why, and what that costs.
  void step_down(const std::string& kernel, int rung, const std::string& text);
  /// The choice of all kernels begins anew.
  void begin() { taken_.clear(); }

  /// Whether the ranks must choose again, from the rungs that others need. Collective.
  bool agree(const comm::World& world);
  /// A line for each kernel that is not the first choice, the same on all ranks after `agree`.
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
  std::optional<LibraryConv> library;  ///< where it has a direction, that product is not used
  Matmul forward;
  Matmul weight_gradient;
  std::optional<Matmul> data_gradient;

  /// Null where the direction is a product.
  const LibraryConv* library_for(ConvDirection direction) const {
    return library && library->has(direction) ? &*library : nullptr;
  }
};

/// How convolutions are done: automatic lets cuDNN have those that suit it (odd kernel, channels in multiples
/// of 8, bf16 or tf32) and does the others as products of windows and weights; the others are for tests.
enum class ConvChoice : std::uint8_t { automatic, products, library };

/// The kernels that libraries bring, for one network and batch. Made without a device; usable when planned.
class NetKernels {
 public:
  NetKernels(int batch, engine::Precision precision, ConvChoice choice)
      : batch_(batch), precision_(precision), choice_(choice) {}

  /// Those of one more layer; they stay where they are.
  const AffineKernels& add(const std::string& name, const Affine& affine);

  /// Memory that a trial of cuDNN's kernels needs for each operand; 0 when there are none.
  std::size_t library_trial_bytes() const;
  /// Asks cuDNN; directions of convolutions that it cannot do become products. Tells the ladder what is not the first choice.
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
  std::deque<Entry> entries_;
};

}  // namespace cifar_mpi::cuda
