#pragma once

#include <cstddef>
#include <string>

#include "cifar_mpi/engine/backend.hpp"

namespace cifar_mpi::cpu {

/// dst = max(src, 0) over `count` values of fp32 or bf16, in any order of memory.
engine::Task plan_relu_forward(const std::string& name, std::size_t count, engine::Precision precision,
                               const std::byte* src, std::byte* dst);

/// Zeroes `grad` in place where `value`, the output of the ReLU, is not positive.
engine::Task plan_relu_backward(const std::string& name, std::size_t count, engine::Precision precision,
                                const std::byte* value, std::byte* grad);

}  // namespace cifar_mpi::cpu
