#pragma once

#include <cstddef>
#include <cstdint>

namespace cifar_mpi::cuda {

/// How values lie in device memory.
enum class ValueType : std::uint8_t { fp32, bf16 };

constexpr std::size_t bytes_per(ValueType type) { return type == ValueType::bf16 ? 2 : 4; }
constexpr const char* name_of(ValueType type) { return type == ValueType::bf16 ? "bf16" : "fp32"; }

}  // namespace cifar_mpi::cuda
