#include "cifar_mpi/base/random.hpp"

#include <cmath>
#include <numbers>

namespace cifar_mpi {

float truncated_normal(std::uint64_t seed, std::uint32_t tensor, std::uint64_t index) {
  // Box–Muller gives two normals per draw; a draw where both lie outside ±2 has probability 0.2 %, so this
  // ends.
  for (std::uint32_t attempt = 0;; ++attempt) {
    const Random4 r =
        random4(seed, RandomPurpose::initial_value, index | (std::uint64_t{attempt} << 48), tensor);
    const double u = (static_cast<double>(r[0]) + 1.0) * 0x1.0p-32;  // in (0, 1]
    const double angle = 2.0 * std::numbers::pi * static_cast<double>(r[1]) * 0x1.0p-32;
    const double radius = std::sqrt(-2.0 * std::log(u));
    for (const double z : {radius * std::cos(angle), radius * std::sin(angle)}) {
      if (std::abs(z) < 2.0) return static_cast<float>(z);
    }
  }
}

}  // namespace cifar_mpi
