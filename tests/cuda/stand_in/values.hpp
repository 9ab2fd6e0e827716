#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

/// Numbers as tensor cores and the libraries read and write them.
namespace cifar_mpi::stand_in {

enum class Type : std::uint8_t { fp32, bf16 };

constexpr std::size_t bytes_per(Type type) { return type == Type::bf16 ? 2 : 4; }

inline std::uint32_t bits_of(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float from_bits(std::uint32_t bits) {
  float value = 0.0f;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// Rounds to nearest, ties to even, to a number whose last `drop` bits are zero; NaN stays NaN.
inline float round_off(float value, int drop) {
  const std::uint32_t bits = bits_of(value);
  if (value != value) return value;
  const std::uint32_t half = (1u << (drop - 1)) - 1 + (bits >> drop & 1);
  return from_bits((bits + half) >> drop << drop);
}
inline float to_tf32(float value) { return round_off(value, 13); }

inline float load(const void* array, Type type, std::size_t i) {
  if (type == Type::fp32) return static_cast<const float*>(array)[i];
  return from_bits(static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(array)[i]) << 16);
}
inline void store(void* array, Type type, std::size_t i, float value) {
  if (type == Type::fp32) {
    static_cast<float*>(array)[i] = value;
  } else {
    const std::uint32_t bits = bits_of(value != value ? value : round_off(value, 16)) >> 16;
    static_cast<std::uint16_t*>(array)[i] = static_cast<std::uint16_t>(bits);
  }
}

}  // namespace cifar_mpi::stand_in
