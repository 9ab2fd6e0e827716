#pragma once

#include <optional>
#include <string>

#include "cpu/affine.hpp"
#include "cpu/planning.hpp"
#include "cpu/pool_group.hpp"

/// The first convolution, its ReLU and the max-pooling behind it as one stage that goes through the batch
/// piece by piece, so that the convolution's output, the largest tensor of the network, never leaves the
/// cache.
///
/// The backward pass needs that output no more (the pooling left its choices) and the first
/// layer has no data gradient, so it is the weight gradient alone: each piece's is added to the sum of those
/// before it, in order. Tutorial, batch 128, fp32, one Zen 5 core, pieces of 16: 3.35 instead of 4.06 ms
/// forward, 3.33 instead of 4.00 ms backward, and 19 MB of memory less; bf16 gains little time. Pieces of 8
/// and 32 come within 3 %. To normalize in the same pieces (16 or 8) changed nothing, 3.66 for 3.68 ms
/// forward and 4.21 for 4.13 ms backward: the normalization computes as long as the memory takes.
namespace cifar_mpi::cpu {

/// Conv2d, Relu if there is one, and MaxPool, going through the batch in the pieces of `conv`; `pool` is of
/// one piece too.
struct ConvPool {
  Affine conv;
  Pool pool;
  Desc dst;  ///< the pooled values of the whole batch

  /// How many pooled values the pieces before `piece` have.
  std::size_t pooled_before(int piece) const {
    return static_cast<std::size_t>(piece) * pool.values_in(pool.out());
  }
};

/// `place` is of one piece, as plan_conv takes it. Nothing when the convolution gives a format that the pooling does not
/// know. Throws dnnl::error.
std::optional<ConvPool> plan_conv_pool(const Dnnl& dnnl, const model::Conv2d& conv,
                                       const model::MaxPool& pool, const AffinePlace& place, int pieces);

/// Where one program has the stage's memory; sizes are those of the whole batch where not said otherwise.
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

/// The group of a chain that begins with such layers; `place` is of the whole batch. Null where they do not
/// stand so, where the batch has no pieces, or where the image is not NCHW.
PlannedGroupPtr plan_conv_pool_group(Planning& planning, const engine::Chain& chain, AffinePlace place);

}  // namespace cifar_mpi::cpu
