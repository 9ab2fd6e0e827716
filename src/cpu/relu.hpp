#pragma once

#include <cstddef>
#include <string>

#include "cifar_mpi/engine/backend.hpp"

namespace cifar_mpi::cpu {

/// dst = max(src, 0) over `count` values of fp32 or bf16, in any order of memory. NaN stays NaN, whatever its
/// sign.
///
/// A ReLU at the end of oneDNN's own kernels differs: with few exceptions it turns NaN of either sign into 0
/// (seen in 2.6.3 with a NaN in the biases, for convolutions and linear layers, fp32 and bf16, from AVX2 on).
/// NaN weights may therefore leave the loss finite; they show in the decay term and in checks of parameters.
engine::Task plan_relu_forward(const std::string& name, std::size_t count, engine::Precision precision,
                               const std::byte* src, std::byte* dst);

/// dst = grad where `value`, the output of the ReLU, is positive, else 0; dst may be grad.
engine::Task plan_relu_mask(const std::string& name, std::size_t count, engine::Precision precision,
                            const std::byte* value, const std::byte* grad, std::byte* dst);

}  // namespace cifar_mpi::cpu
