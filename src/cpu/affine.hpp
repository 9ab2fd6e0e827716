#pragma once

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

/// Formats as the kernels settled them; the ParamTable indices are left to the caller.
Affine settle_affine(const Dnnl& dnnl, const AffineFormats& formats, AffineKernels kernels);

}  // namespace cifar_mpi::cpu
