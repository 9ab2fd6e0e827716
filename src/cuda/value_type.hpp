#pragma once

#include <cstddef>
#include <cstdint>

namespace cifar_mpi::cuda {

/// The types of values in device memory.
enum class ValueType : std::uint8_t { fp32, bf16 };

constexpr std::size_t bytes_per(ValueType type) { return type == ValueType::bf16 ? 2 : 4; }
constexpr const char* name_of(ValueType type) { return type == ValueType::bf16 ? "bf16" : "fp32"; }

/// How a pooling or normalization reads its input: with `relu` as max(x + bias[channel], 0), rounded to the type as
/// if that had been stored. Biases are null where they have been added; a ReLU's output may be read through it again.
struct Activation {
  bool relu = false;
  const float* bias = nullptr;
};

/// max(value, 0), but a NaN stays one, so that divergence is seen.
constexpr float rectified(float value) { return value < 0.0f ? 0.0f : value; }

}  // namespace cifar_mpi::cuda
