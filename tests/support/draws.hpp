#pragma once

#include <cstdint>
#include <vector>

#include "cifar_mpi/base/random.hpp"
#include "reference/reference.hpp"

/// Inputs that are pure functions of the arguments.
namespace cifar_mpi::test {

/// Uniform in [-1, 1).
inline float noise(std::uint64_t index, std::uint32_t salt) {
  return 2.0f * uniform01(random4(salt, RandomPurpose::synthetic, index, 0)[0]) - 1.0f;
}

inline std::vector<float> noise_of(std::size_t count, std::uint32_t salt, float scale = 1.0f) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = scale * noise(i, salt);
  return values;
}

inline reference::Array noise_array(std::size_t count, std::uint32_t salt, float scale = 1.0f) {
  const std::vector<float> values = noise_of(count, salt, scale);
  return {values.begin(), values.end()};
}

/// Multiples of 1/64 in [−1, 1]: exact in bf16 and tf32, and a sum of products of two of them is exact in fp32 in any
/// order as long as it stays below 2^24 / 2^12 = 4096, so that kernels and the reference can be compared with ==.
inline reference::Array lattice(std::size_t count, std::uint32_t salt) {
  reference::Array values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t bits = random4(salt, RandomPurpose::synthetic, i, 0)[0];
    values[i] = (static_cast<int>(uniform_below(bits, 129)) - 64) / 64.0;
  }
  return values;
}

}  // namespace cifar_mpi::test
