#pragma once

#include "cifar_mpi/model/layer.hpp"
#include "cpu/affine.hpp"

namespace cifar_mpi::cpu {

/// Formats, kernels and weight copies of a convolution. Throws dnnl::error.
///
/// The gradient of the input of a convolution with stride 1 is a convolution too: of the gradient of its output, with the
/// weights rotated by 180 degrees. Where oneDNN has its batched-GEMM kernel (brgconv) for the forward pass
/// only, as 2.6 in fp32, the data gradient is planned as such a forward convolution: conv2 of the tutorial at
/// batch 128 takes 12.0 instead of 13.6 ms, one Zen 5 core, and the extra preparation of the weights less
/// than 0.1 ms.
///
/// A kernel of 3x3 over 16 to 64 channels is faster in blocks of channels than in NHWC, 5x5 is not (fp32; the
/// tutorial's formats stay as planning.hpp has them).
///
/// The batch is worked off in pieces of 16 samples (see pieces.hpp). That costs no time: the weight gradient
/// takes 13.5 ms whole and in pieces that are summed (pieces only gain when the same one is read again and
/// again, 12.6), in bf16 9.1 and 9.0. oneDNN 2.6 has one kernel for it besides GEMM and reference loops;
/// blocked activations take it to 14.5 ms.
Affine plan_conv(const Dnnl& dnnl, const model::Conv2d& layer, const AffinePlace& place);

/// The weights' logical order, [k, k, in, out].
Desc conv_logical_weights(const model::Conv2d& layer, const Extent& in);

}  // namespace cifar_mpi::cpu
