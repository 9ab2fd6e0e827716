#pragma once

#include <cmath>

#include "support/draws.hpp"

namespace cifar_mpi::cuda::testing {

using reference::relative_distance;
using test::noise;

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

}  // namespace cifar_mpi::cuda::testing
