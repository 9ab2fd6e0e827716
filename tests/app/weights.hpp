#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cifar_mpi/base/random.hpp"
#include "cifar_mpi/run/checkpoint.hpp"

/// The distance between two runs, and a perturbation of the last digit for comparison.
namespace cifar_mpi::test {

/// |a - b| / |a| over all weights.
inline double distance(const run::Checkpoint& a, const run::Checkpoint& b) {
  double difference = 0.0;
  double size = 0.0;
  for (std::size_t t = 0; t < a.state[optim::StateRole::weights].size(); ++t) {
    for (std::size_t i = 0; i < a.state[optim::StateRole::weights][t].values.size(); ++i) {
      difference += std::pow(static_cast<double>(a.state[optim::StateRole::weights][t].values[i]) -
                                 b.state[optim::StateRole::weights][t].values[i],
                             2);
      size += std::pow(static_cast<double>(a.state[optim::StateRole::weights][t].values[i]), 2);
    }
  }
  return std::sqrt(difference / size);
}

/// Moves every weight to the next fp32 number, up or down.
inline void perturb(run::Checkpoint& checkpoint, std::uint64_t seed) {
  for (std::size_t t = 0; t < checkpoint.state[optim::StateRole::weights].size(); ++t) {
    std::vector<float>& values = checkpoint.state[optim::StateRole::weights][t].values;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const Random4 bits = random4(seed, RandomPurpose::synthetic, i, static_cast<std::uint32_t>(t));
      values[i] = std::nextafter(values[i], bits[0] % 2 == 0 ? 1e9f : -1e9f);
    }
  }
}

}  // namespace cifar_mpi::test
