#pragma once

#include <optional>
#include <string>

#include "cpu/affine.hpp"
#include "cpu/planning.hpp"
#include "cpu/pool.hpp"

/// The first convolution with its ReLU and max-pooling as one stage that processes the batch piece by piece,
/// so that the convolution's output, the network's largest tensor, stays in the cache.
///
/// The backward pass does not need that output, because the pooling stored its choices, and the first layer
/// has no data gradient. So only the weight gradient remains: those of the pieces are summed in order.
/// Tutorial, batch 128, fp32, one Zen 5 core, pieces of 16: 3.35 instead of 4.06 ms forward, 3.33 instead of
/// 4.00 ms backward, and 19 MB less memory; bf16 gains little time. Pieces of 8 and 32 are within 3 %.
/// Normalizing in the same pieces (16 or 8) changed nothing, 3.66 against 3.68 ms forward and 4.21 against
/// 4.13 ms backward: there, computing takes as long as memory.
namespace cifar_mpi::cpu {

/// Conv2d, Relu if there is one, and MaxPool, processing the batch in the pieces of `conv`; `pool` describes
/// one piece too.
struct ConvPool {
  Affine conv;
  Pool pool;
  Desc dst;  ///< the pooled values of the whole batch

  /// Number of pooled values in the pieces before `piece`.
  std::size_t pooled_before(int piece) const {
    return static_cast<std::size_t>(piece) * pool.values_in(pool.out());
  }
};

/// `place` describes one piece, as for plan_conv. Empty when the pooling does not know the convolution's
/// format. Throws dnnl::error.
std::optional<ConvPool> plan_conv_pool(const Dnnl& dnnl, const model::Conv2d& conv,
                                       const model::MaxPool& pool, const AffinePlace& place, int pieces);

/// Addresses of the stage's memory in one program; sizes are those of the whole batch unless noted.
struct ConvPoolMemory {
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;             ///< pooled
  const std::byte* grad_dst = nullptr;  ///< of the pooled values
  std::uint8_t* choices = nullptr;      ///< of the pooled values; null: evaluation
  std::byte* piece = nullptr;           ///< [one piece] the convolution's output, or its gradient
  std::byte* partial = nullptr;         ///< [partial_bytes()] gradients of one piece
  std::byte* scratch = nullptr;
};

engine::Task plan_conv_pool_forward(const std::string& name, const Dnnl& dnnl, const ConvPool& stage,
                                    const ConvPoolMemory& memory, const void* weights, const float* biases);

engine::Task plan_conv_pool_backward(const std::string& name, const Dnnl& dnnl, const ConvPool& stage,
                                     const ConvPoolMemory& memory, float* grad_weights, float* grad_biases);

/// The group of a chain that begins with these layers; `place` describes the whole batch. Null if the chain
/// has other layers, the batch has no pieces, or the image is not NCHW.
PlannedGroupPtr plan_conv_pool_group(Planning& planning, const engine::Chain& chain, AffinePlace place);

struct PlannedPool {
  Pool pool;
  dnnl::memory::format_tag format;  ///< of both sides
};

/// The max-pooling of `batch` images with the format of `src`; empty if that is none of NHWC, NCHW and blocks
/// of 8 and 16 channels. Throws Error{usage} for a window that is too large.
std::optional<PlannedPool> plan_pool(const model::MaxPool& layer, int batch, const Desc& src,
                                     const Extent& in);

/// Its kernels in the text of the plan.
void note_pool(Planning& planning, const Pool& pool);

}  // namespace cifar_mpi::cpu
