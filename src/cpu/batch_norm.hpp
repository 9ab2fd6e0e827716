#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cifar_mpi/engine/backend.hpp"
#include "cifar_mpi/engine/program.hpp"

/// Batch normalization, optionally followed by a ReLU, a SiLU, or the sum with another value and a ReLU, in any
/// blocked layout.
namespace cifar_mpi::cpu {

/// An activation of `batch` images of `pixels` = height·width pixels, in blocks of channels as LrnShape counts
/// them. Block sizes must divide `channels`.
struct BatchNormShape {
  int batch = 0;
  int pixels = 0;
  int channels = 0;
  int src_block = 0;
  int dst_block = 0;
};

/// The function of single values after the normalization. relu: max(y, 0), where NaN stays NaN. silu: as
/// PointwiseKind has it.
enum class Activation : std::uint8_t { none, relu, silu };

/// The common part of all three tasks. Activations are bf16 or fp32 (any other precision); arithmetic is
/// fp32, sums over images double. Bits do not depend on the number of threads.
struct BatchNormLayer {
  std::string name;
  BatchNormShape shape;
  engine::Precision precision = engine::Precision::fp32;
  float epsilon = 0.0f;
  Activation then = Activation::none;
  const float* scale = nullptr;   ///< [channels]; null: 1
  const float* biases = nullptr;  ///< [channels]
};

/// The forward pass stores the mean and 1/√(variance + epsilon) in `moments` [2, channels] for the backward
/// pass; `partials` [batch + 1, 2, channels] is scratch memory of one task.
std::size_t moments_floats(const BatchNormShape& shape);
std::size_t partials_floats(const BatchNormShape& shape);

/// Operands of the forward pass.
struct BatchNormForward {
  const std::byte* src = nullptr;
  const std::byte* other = nullptr;  ///< in dst_block; added before the ReLU, without which it must be null
  std::byte* dst = nullptr;
  float* moments = nullptr;
  float* partials = nullptr;  ///< unused if statistics are given
};

/// y = f(scale · (x − mean) · rstd + bias) with the moments of this batch and biased variance, and f the activation,
/// before which `other` is added. Stores share · mean and share · variance at `mean` and `variance`.
///
/// One pass computes an image's moments relative to its first pixel; they are merged in the order of the
/// images (Chan, Golub and LeVeque 1979), so a mean much larger than the deviation loses no digits.
engine::Task plan_batch_norm_forward(const BatchNormLayer& layer, const BatchNormForward& memory, float* mean,
                                     float* variance, float share);

/// The same in three tasks with the moments of all ranks' batches, which are equally large. Per channel a rank adds
/// mean − around and variance + (mean − around)² to the sums, with `around` the running mean, which all ranks have in
/// common. So the variance loses digits only where the batch's mean is far from it: its relative error is about
/// eps · (1 + (mean − around)²/variance).
std::vector<engine::Task> plan_batch_norm_forward(const BatchNormLayer& layer, const BatchNormForward& memory,
                                                  float* mean, float* variance, float share,
                                                  const float* around, const engine::RankSums& sums);

/// The same with the given statistics.
engine::Task plan_batch_norm_inference(const BatchNormLayer& layer, const BatchNormForward& memory,
                                       const float* mean, const float* variance);

/// Operands of the backward pass.
struct BatchNormBackward {
  const std::byte* src =
      nullptr;  ///< x as in the forward pass; without `dst` the activation's input is recomputed
  const std::byte* dst = nullptr;  ///< y, if another value was added; else null
  const std::byte* grad_dst = nullptr;
  const std::byte* more_grad_dst = nullptr;  ///< added to it; only with `dst`. Null: none
  const float* moments = nullptr;
  float* partials = nullptr;
  float* grad_scale = nullptr;   ///< null: not computed
  float* grad_biases = nullptr;  ///< null: not computed
  /// In src_block; null: not computed. Without a SiLU it may be src; with a SiLU it must be `joined`. It overlaps nothing
  /// else.
  std::byte* grad_src = nullptr;
  /// Receives g. With `dst`: the gradient of `other`, may be grad_dst or more_grad_dst. With a SiLU: in src_block, may be
  /// grad_dst if the blocks are equal. Else null.
  std::byte* joined = nullptr;
};

/// With g the gradient of y times the slope of the activation (which is 0 or 1 for a ReLU), x̂ = (x − mean) · rstd and
/// n = batch · pixels:
///   grad_biases = Σ g, grad_scale = Σ g·x̂, grad_x = scale · rstd · (g − (grad_biases + x̂ · grad_scale) / n)
engine::Task plan_batch_norm_backward(const BatchNormLayer& layer, const BatchNormBackward& memory);

/// The same in three tasks for moments of all ranks' batches: the sums and n in grad_x are those of all ranks,
/// grad_biases and grad_scale this rank's share.
std::vector<engine::Task> plan_batch_norm_backward(const BatchNormLayer& layer,
                                                   const BatchNormBackward& memory,
                                                   const engine::RankSums& sums);

}  // namespace cifar_mpi::cpu
