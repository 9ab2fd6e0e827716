#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cpu/stage.hpp"

/// What convolutions and linear layers have in common: weights, biases, and three kernels.
namespace cifar_mpi::cpu {

/// What a layer with parameters is planned from.
struct AffinePlace {
  int batch = 0;
  Desc src;  ///< NHWC; for the first layer with parameters also NCHW
  Extent in;
  Extent out;
  bool choose_dst = false;  ///< a convolution chooses the format of its output; otherwise NHWC
  dnnl::memory::data_type type = dnnl::memory::data_type::f32;      ///< of activations and compute copies
  dnnl::memory::data_type dst_type = dnnl::memory::data_type::f32;  ///< of the output
  bool relu = false;
  bool wants_grad_src = false;
};

/// Formats as the kernels settled them; the ParamTable indices are left to the caller. `turning` is set when
/// `kernels.data_gradient` wants turned weights.
Affine settle_affine(const Dnnl& dnnl, const AffineFormats& formats, AffineKernels kernels,
                     std::optional<Turning> turning = std::nullopt);

/// The tasks that make the copy at `weights` from the master copy; `taps` is only used by a turned copy, and
/// has as many bytes as its `taps`. None when the master copy serves.
std::vector<engine::Task> prepare_tasks(const std::string& name, const Dnnl& dnnl, const Desc& master_desc,
                                        const WeightCopy& copy, const float* master, std::byte* taps,
                                        std::byte* weights, std::byte* scratch);

/// The operands of the data-gradient kernel, whichever it is.
std::vector<Operand> data_gradient_operands(const Affine& affine, const std::byte* grad_dst,
                                            const void* weights, std::byte* grad_src);

}  // namespace cifar_mpi::cpu
