#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/loss_math.hpp"
#include "cuda/value_type.hpp"

/// Softmax cross-entropy of a batch; see loss_math.hpp. Both enqueue and return.
///
/// Losses are summed in double, in an order that depends on the batch alone, and stored as fp32; a NaN or
/// infinite logit makes the sum non-finite, which is how divergence is seen.
namespace cifar_mpi::cuda {

struct LossInput {
  int batch = 0;
  int classes = 0;
  ValueType logit_type = ValueType::fp32;
  const void* logits = nullptr;          ///< [batch, classes]
  const std::uint8_t* labels = nullptr;  ///< [batch]; one that is no class is left out
};

/// Adds loss, correct and counted samples to sums[0..2] and writes the gradient [batch, classes].
void train_loss(cudaStream_t stream, const LossInput& input, const LossRule& rule, ValueType grad_type,
                void* grad_logits, float* sums);

/// Overwrites predictions [batch] and loss_sum [1].
void evaluate_loss(cudaStream_t stream, const LossInput& input, std::uint8_t* predictions, float* loss_sum);

}  // namespace cifar_mpi::cuda
