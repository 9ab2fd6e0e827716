#pragma once

#include <cmath>
#include <cstdint>

#include "cifar_mpi/base/random.hpp"
#include "reference/reference.hpp"

namespace cifar_mpi::cuda::testing {

using reference::relative_distance;

/// The host's functions in place of the device's.
struct HostMath {
  float sqrt(float x) const { return std::sqrt(x); }
  float rsqrt(float x) const { return 1.0f / std::sqrt(x); }
  float divide(float x, float y) const { return x / y; }
  float pow(float x, float y) const { return std::pow(x, y); }
  float exp(float x) const { return std::exp(x); }
  float erfc(float x) const { return std::erfc(x); }
  float log1p(float x) const { return std::log1p(x); }
};

/// Uniform in [-1, 1); a pure function of the arguments.
inline float noise(std::uint64_t index, std::uint32_t salt) {
  return 2.0f * uniform01(random4(salt, RandomPurpose::synthetic, index, 0)[0]) - 1.0f;
}

inline reference::Array noise_of(std::size_t count, std::uint32_t salt, double scale = 1.0) {
  reference::Array values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>(scale * static_cast<double>(noise(i, salt)));
  return values;
}

}  // namespace cifar_mpi::cuda::testing
