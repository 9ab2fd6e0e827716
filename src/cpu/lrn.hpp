#pragma once

#include <cstddef>
#include <string>

#include "cifar_mpi/engine/backend.hpp"
#include "cifar_mpi/engine/program.hpp"
#include "cifar_mpi/model/layer.hpp"

/// Local response normalisation across channels, in any blocked layout.
namespace cifar_mpi::cpu {

/// An activation of `batch` images of `pixels` = height·width pixels. In block size b, element (n, c, p) lies
/// at n·C·P + (c/b)·P·b + p·b + c%b: b == channels is NHWC, b == 1 is NCHW, 8 and 16 are oneDNN's blocked
/// formats. Block sizes must divide `channels`.
struct LrnShape {
  int batch = 0;
  int pixels = 0;
  int channels = 0;
  int src_block = 0;
  int dst_block = 0;
};

/// y_c = x_c · s_c^(−beta) with s_c = bias + alpha · Σ x², the sum over channels c − radius … c + radius
/// inside the image (Krizhevsky et al. 2012; TensorFlow's `local_response_normalization`: alpha is not
/// divided by the window).
///
///   src        x [batch, channels, pixels] in src_block
///   dst        y, the same in dst_block; must not overlap src
///   precision  element type of both: bf16, or fp32 for anything else; arithmetic is fp32
///   bits       do not depend on the number of threads
///   throws     std::logic_error for a shape that does not fit, Error{usage} for more channels than a tile
///              holds (2 000)
engine::Task plan_lrn_forward(const std::string& name, const model::LocalResponseNorm& lrn,
                              const LrnShape& shape, engine::Precision precision, const std::byte* src,
                              std::byte* dst);

/// grad_x_c = g_c · s_c^(−beta) − 2·alpha·beta · x_c · Σ g_c' · x_c' · s_c'^(−beta−1), the sum over the same
/// window.
///
///   src        x as in the forward pass, in src_block; s is recomputed, which is cheaper than storing it
///   grad_dst   g in dst_block
///   grad_src   in src_block; may be src itself, otherwise must not overlap the others
///   mask_relu  src is the output of a ReLU: grad_src is zero where src <= 0, which is that ReLU's backward
///              pass
engine::Task plan_lrn_backward(const std::string& name, const model::LocalResponseNorm& lrn,
                               const LrnShape& shape, engine::Precision precision, const std::byte* src,
                               const std::byte* grad_dst, std::byte* grad_src, bool mask_relu);

}  // namespace cifar_mpi::cpu
