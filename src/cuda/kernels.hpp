#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>

#include "cuda/library_conv.hpp"
#include "cuda/matmul.hpp"
#include "cuda/planner.hpp"

namespace cifar_mpi::cuda {

/// The libraries' kernels of one convolution or linear layer.
struct AffineKernels {
  std::optional<LibraryConv> library;  ///< where there is one, the products are not used
  Matmul forward;
  Matmul weight_gradient;
  std::optional<Matmul> data_gradient;
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
  /// Asks cuDNN; convolutions it cannot do become products.
  void plan_library(const Trial& trial);
  std::size_t product_trial_bytes() const;
  void plan_products(const Trial& trial);

  /// One line per kernel.
  std::string text() const;

 private:
  struct Entry {
    std::string name;
    AffineKernels kernels;
    std::string remark;  ///< why cuDNN was not taken
    bool wants_grad_x = false;
    std::size_t library_bytes = 0;
  };
  int batch_;
  engine::Precision precision_;
  ConvChoice choice_;
  std::deque<Entry> entries_;
};

}  // namespace cifar_mpi::cuda
