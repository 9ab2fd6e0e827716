#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cuda/loss_math.hpp"
#include "cuda/value_type.hpp"

/// Softmax cross-entropy of a batch; see loss_math.hpp. Both enqueue and return.
///
/// Each block adds the losses of kLossSamples samples in a tree, the last block the sums of the blocks; all
/// in fp32, in an order that depends only on the batch. The terms are nonnegative, so this adds at most
/// (2·log2(kLossSamples) + blocks / kLossSamples)·2^-24 to the relative error of a sample's loss. A NaN or
/// infinite logit makes the sum non-finite, which reveals divergence.
namespace cifar_mpi::cuda {

/// Samples (and threads) per block. A constant, because it affects bits.
constexpr int kLossSamples = 128;
constexpr int loss_blocks(int batch) { return (batch + kLossSamples - 1) / kLossSamples; }

/// Floats of LossInput::partials: loss, correct and counted samples of each block.
constexpr std::size_t loss_partials(int batch) { return 3 * static_cast<std::size_t>(loss_blocks(batch)); }

struct LossInput {
  int batch = 0;
  int classes = 0;
  int columns = 0;  ///< of the logits and their gradient; from `classes` on they are padding
  ValueType logit_type = ValueType::fp32;
  const void* logits = nullptr;          ///< [batch, columns]
  const std::uint8_t* labels = nullptr;  ///< [batch]; a label that is no class is ignored
  float* partials = nullptr;
  unsigned* counter = nullptr;  ///< zero before and after
};

/// Adds loss, correct and counted samples to sums[0..2] and writes the gradient [batch, columns], zero in the
/// padding.
void train_loss(cudaStream_t stream, const LossInput& input, const LossRule& rule, ValueType grad_type,
                void* grad_logits, float* sums);

/// Overwrites predictions [batch], loss_sum [1] and, unless it is null, `logits` [batch, classes].
void evaluate_loss(cudaStream_t stream, const LossInput& input, std::uint8_t* predictions, float* loss_sum,
                   float* logits);

}  // namespace cifar_mpi::cuda
