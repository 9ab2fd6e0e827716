#pragma once

#include <bit>
#include <cstdint>

namespace cifar_mpi {

/// bfloat16: the upper half of an fp32 number. 8 significant bits: rounding to nearest changes a value by at
/// most a 256th of it.
struct bf16 {
  std::uint16_t bits = 0;
};
static_assert(sizeof(bf16) == 2);

/// Exact.
constexpr float to_float(bf16 value) { return std::bit_cast<float>(std::uint32_t{value.bits} << 16); }

/// Rounds to nearest, ties to even; overflows to infinity as IEEE 754 does. A NaN stays a NaN of the same
/// sign. Without branches, so that loops become vectors.
constexpr bf16 to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet_nan = (bits >> 16) | 0x40u;  // rounding could carry a NaN's payload into infinity
  const bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  return {static_cast<std::uint16_t>(is_nan ? quiet_nan : rounded)};
}

}  // namespace cifar_mpi
