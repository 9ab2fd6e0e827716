#pragma once

#include <cstddef>
#include <string>

#include "cifar_mpi/engine/backend.hpp"

namespace cifar_mpi::cpu {

/// dst = max(src, 0) over `count` values of fp32 or bf16, in any order of memory. What is not a number stays
/// so, whatever its sign.
///
/// A ReLU at the end of oneDNN's own kernels is not like that: with few exceptions they make a NaN of either
/// sign a 0 (seen in 2.6.3 with a NaN in the biases, for convolutions and linear layers, fp32 and bf16, from
/// AVX2 on). Weights that are NaN may so leave the loss finite; they show in the decay term, and where
/// parameters are looked at.
engine::Task plan_relu_forward(const std::string& name, std::size_t count, engine::Precision precision,
                               const std::byte* src, std::byte* dst);

/// dst = grad where `value`, the output of the ReLU, is positive, else 0; dst may be grad.
engine::Task plan_relu_mask(const std::string& name, std::size_t count, engine::Precision precision,
                            const std::byte* value, const std::byte* grad, std::byte* dst);

}  // namespace cifar_mpi::cpu
