#pragma once

#include <cstddef>
#include <cstdint>

#include "cifar_mpi/engine/backend.hpp"
#include "cifar_mpi/engine/program.hpp"

/// Softmax cross-entropy, its gradient, and the statistics of a batch.
namespace cifar_mpi::cpu {

/// Logits are [batch, logit_stride] fp32 with logit_stride >= classes; values past `classes` are ignored.
struct LossShape {
  int batch = 0;
  int classes = 0;
  int logit_stride = 0;
};

/// The cross-entropy of the target q_ij = (1 − E)·[j == label] + E/classes, E = binding.label_smoothing:
/// loss_i = log Σ_j exp(z_ij − m_i) − Σ_j q_ij·(z_ij − m_i) with m_i the largest logit, and grad_ij =
/// (softmax(z_i)_j − q_ij) / global_batch.
///
///   labels       [batch]; a label that is no class (255 is padding) is ignored: no loss, no count, zero
///                gradient
///   grad_logits  [batch, grad_stride] fp32, or bf16 when `grad_precision` is bf16; zero past `classes`
///   control      loss_sum, correct and samples of this batch are added to the control block
///   bits         do not depend on the number of threads: losses are summed in sample order, in double, and
///                stored as fp32
///   NaN          or infinite logits make loss_sum non-finite, which reveals divergence
///   throws       std::logic_error for strides shorter than `classes`
engine::Task plan_train_loss(const engine::TrainBinding& binding, const LossShape& shape, const float* logits,
                             const std::uint8_t* labels, std::byte* grad_logits, int grad_stride,
                             engine::Precision grad_precision);

/// Labels are not smoothed here. predictions[i] is the class with the largest logit, the first of equals; loss_sum is the sum of loss_i
/// over the samples whose label is a class. Both, and the binding's logits if there are any, are overwritten in every replay.
engine::Task plan_evaluate_loss(const engine::EvaluateBinding& binding, const LossShape& shape,
                                const float* logits, const std::uint8_t* labels);

}  // namespace cifar_mpi::cpu
