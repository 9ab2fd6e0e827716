#pragma once

#include <array>
#include <cstdint>

/// Random numbers without state: each is a pure function of its seed, purpose and index.
///
/// Everything here is constexpr, so the same code runs on the host, at compile time and in device kernels.
namespace cifar_mpi {

/// The purpose of a random number. Part of the key, so no two uses share numbers. Changing a value changes
/// the results of runs.
enum class RandomPurpose : std::uint32_t {
  initial_value = 1,
  sample_order = 2,
  augment = 3,
  synthetic = 4,
  cutout = 5,
  flip = 6,
  colour = 7
};

using Random4 = std::array<std::uint32_t, 4>;

/// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"
/// (SC 2011).
constexpr Random4 philox(Random4 counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(p1),
               static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(p0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

/// Four numbers for (seed, purpose, index, sub). `index` has 64 bits, `sub` 32 (an epoch, an attempt, a
/// tensor).
constexpr Random4 random4(std::uint64_t seed, RandomPurpose purpose, std::uint64_t index, std::uint32_t sub) {
  return philox({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), sub,
                 static_cast<std::uint32_t>(purpose)},
                {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
}

/// Uniform in [0, 1): the top 24 bits, exact in float.
constexpr float uniform01(std::uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1.0p-24f; }

/// Uniform in {0, ..., n-1} by multiply and shift; n ≥ 1. The bias is below n/2^32.
constexpr std::uint32_t uniform_below(std::uint32_t bits, std::uint32_t n) {
  return static_cast<std::uint32_t>((std::uint64_t{bits} * n) >> 32);
}

/// Standard normal cut at two standard deviations by redrawing, as TensorFlow's `truncated_normal`; a pure
/// function of the arguments. `tensor` numbers the tensor, `index` the element in logical order. Host only
/// (Box–Muller in double).
float truncated_normal(std::uint64_t seed, std::uint32_t tensor, std::uint64_t index);

}  // namespace cifar_mpi
