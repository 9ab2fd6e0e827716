#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cpu/amx_gradient.hpp"
#include "cpu/dnnl.hpp"

/// The common part of convolutions and linear layers: weights, biases, and three kernels.
namespace cifar_mpi::cpu {

/// Weights of a convolution, rotated by 180 degrees with in and out swapped: fp32, tap by tap.
struct Rotation {
  Kernel unpack;  ///< master → taps
  Desc taps;      ///< {out, in, k, k} in the order [k, k, out, in]
  Desc rotated;   ///< {in, out, k, k}: the bytes of `taps` in reverse order of taps
  int tap_count = 0;
  std::size_t tap_floats = 0;
};

/// A compute copy of weights in a kernel's format; without `reorder` the kernel reads the master copy.
struct WeightCopy {
  Desc desc;
  std::optional<Rotation> rotation;
  std::optional<Kernel> reorder;  ///< master → desc, or rotated → desc
};

/// Conv2d or Linear, with the ReLU after it if there is one. A linear layer sees its values as matrices. A
/// convolution processes the batch in `pieces`; its formats and kernels then describe one piece. With
/// `concurrent` pieces above 1 its kernels are for one thread, and threads compute pieces at the same time.
struct Affine {
  Desc src;
  Desc dst;
  Desc grad_dst;
  Desc master;  ///< weights and their gradient
  Desc bias;    ///< empty: none
  AffineKernels kernels;
  WeightCopy forward_weights;
  std::optional<AmxGradient> own_gradient;  ///< computes the weight gradient instead of oneDNN's kernel
  WeightCopy backward_weights;  ///< for the data gradient; unused when its format is the forward one
  bool wants_grad_src = false;
  bool relu = false;
  int pieces = 1;
  int concurrent = 1;

  /// SRC, WEIGHTS, BIAS → DST
  std::vector<Operand> forward_operands(const std::byte* x, const void* weights, const float* biases,
                                        std::byte* y) const;
  std::size_t weight_floats() const { return master.get_size() / sizeof(float); }
  bool has_bias() const { return !(bias == Desc()); }
  std::size_t bias_floats() const { return bias.get_size() / sizeof(float); }
  /// The scratch memory of `kernel`, one of `kernels`.
  std::size_t scratch_bytes(const Kernel& kernel) const;
  /// The scratch memory of the weight gradient.
  std::size_t gradient_scratch_bytes() const;
  /// Gradients of the parameters from one piece, or from all but the first if they are computed at once.
  std::size_t partial_bytes() const;
  /// From one such gradient to the next.
  std::size_t partial_floats() const;
  /// A convolution of the gradient (see conv.hpp).
  bool is_rotated() const { return backward_weights.rotation.has_value(); }
  bool shares_weights() const { return !is_rotated() && forward_weights.desc == backward_weights.desc; }
};

/// Inputs to the planning of a layer with parameters.
struct AffinePlace {
  int batch = 0;
  Desc src;  ///< in `format`; the first layer with parameters also accepts NCHW
  Extent in;
  Extent out;
  dnnl::memory::format_tag format = dnnl::memory::format_tag::nhwc;  ///< of the output
  bool choose_dst = false;  ///< a convolution chooses its output format instead
  dnnl::memory::data_type type = dnnl::memory::data_type::f32;      ///< of activations and compute copies
  dnnl::memory::data_type dst_type = dnnl::memory::data_type::f32;  ///< of the output
  bool relu = false;
  bool wants_grad_src = false;
  bool one_thread = false;  ///< kernels for one thread
  const Desc* master =
      nullptr;  ///< how the weights must lie in memory; null: as the weight gradient's kernel likes
  /// Computes the weight gradient, in the layout of conv_logical_weights.
  std::optional<AmxGradient> own_gradient;
};

/// Formats as the kernels chose them. `rotation` is set when `kernels.data_gradient` needs rotated weights.
/// `master`: how the weights lie in memory; empty: as the weight gradient's kernel chose.
Affine make_affine(const Dnnl& dnnl, const AffineFormats& formats, AffineKernels kernels,
                   std::optional<Rotation> rotation = std::nullopt, const Desc& master = {});

/// The tasks that make the copy at `weights` from the master copy; empty if the kernel reads the master copy.
/// Only a rotated copy uses `taps`, which has the size of its `taps`.
std::vector<engine::Task> prepare_tasks(const std::string& name, const Dnnl& dnnl, const Desc& master_desc,
                                        const WeightCopy& copy, const float* master, std::byte* taps,
                                        std::byte* weights, std::byte* scratch);

/// Addresses of the layer's memory in one program; sizes are those of the whole batch unless noted.
struct AffineMemory {
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  const std::byte* grad_dst = nullptr;
  std::byte* grad_src = nullptr;
  std::byte* partial = nullptr;  ///< [partial_bytes()]; unused with one piece
  std::byte* scratch = nullptr;
};

engine::Task plan_affine_forward(const std::string& name, const Dnnl& dnnl, const Affine& affine,
                                 const AffineMemory& memory, const void* weights, const float* biases);

/// Gradients of pieces are summed in order.
engine::Task plan_weight_gradient(const std::string& name, const Dnnl& dnnl, const Affine& affine,
                                  const AffineMemory& memory, float* grad_weights, float* grad_biases);

engine::Task plan_data_gradient(const std::string& name, const Dnnl& dnnl, const Affine& affine,
                                const AffineMemory& memory, const void* weights);

/// Where pieces write the parameters' gradients: the first into the sum, the others into `partial`, which is
/// then added. Pieces that are computed at the same time have one part of `partial` each.
class PieceSums {
 public:
  PieceSums(const Affine& affine, std::byte* partial, float* grad_weights, float* grad_biases)
      : affine_(affine), partial_(reinterpret_cast<float*>(partial)), sums_{grad_weights, grad_biases} {}

  /// The operands that `piece` writes.
  std::vector<Operand> operands(int piece) const;
  /// Appends the tasks that add the first `parts` parts of `partial`, in order.
  void add(int parts, std::vector<engine::Task>& tasks) const;

 private:
  const Affine& affine_;
  float* partial_;
  float* sums_[2];
};

}  // namespace cifar_mpi::cpu
