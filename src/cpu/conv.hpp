#pragma once

#include "cifar_mpi/model/layer.hpp"
#include "cpu/affine.hpp"

namespace cifar_mpi::cpu {

/// Formats, kernels and weight copies of a convolution. Throws dnnl::error.
///
/// The data gradient of a convolution with stride 1 is a convolution too: of the output's gradient, with the
/// weights rotated by 180 degrees. Where oneDNN offers its batched-GEMM kernel (brgconv) only for the forward
/// pass, as version 2.6 does in fp32, the data gradient is planned as such a forward convolution: conv2 of
/// the tutorial at batch 128 takes 12.0 instead of 13.6 ms on one Zen 5 core, and the additional preparation
/// of weights less than 0.1 ms.
///
/// 3x3 kernels over 16 to 64 channels are faster in blocks of channels than in NHWC, 5x5 kernels are not
/// (fp32; the tutorial's formats are described in planning.hpp).
///
/// The batch is processed in pieces of 16 samples (see pieces.hpp), which costs no time: the weight gradient
/// takes 13.5 ms as a whole and as a sum over pieces (12.6 if it reads one piece repeatedly), in bf16 9.1 and
/// 9.0. oneDNN 2.6 has one kernel for it besides GEMM and reference loops; with blocked activations it takes
/// 14.5 ms.
Affine plan_conv(const Dnnl& dnnl, const model::Conv2d& layer, const AffinePlace& place);

/// The weights' logical order, [k, k, in, out].
Desc conv_logical_weights(const model::Conv2d& layer, const Extent& in);

}  // namespace cifar_mpi::cpu
