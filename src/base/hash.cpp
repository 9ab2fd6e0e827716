#include "cifar_mpi/base/hash.hpp"

#include <array>
#include <cstring>

namespace cifar_mpi {
namespace {

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection that spreads every bit over all 64.
constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

std::uint64_t hash_bytes(std::span<const std::byte> bytes) {
  // Four chains, so that the multiplier's latency is hidden. Each step is a bijection of the chain's state
  // for a fixed word, and of the word for a fixed state: a single changed word always changes the result.
  constexpr std::size_t kChains = 4;
  constexpr std::size_t kStride = kChains * sizeof(std::uint64_t);
  std::array<std::uint64_t, kChains> chains{1, 2, 3, 4};
  for (std::size_t at = 0; at < bytes.size(); at += kStride) {
    std::array<std::uint64_t, kChains> words{};
    std::memcpy(words.data(), bytes.data() + at, at + kStride <= bytes.size() ? kStride : bytes.size() - at);
    for (std::size_t c = 0; c < kChains; ++c) {
      chains[c] = (chains[c] ^ words[c]) * 0x9E3779B97F4A7C15u;
      chains[c] ^= chains[c] >> 32;
    }
  }
  std::uint64_t hash = bytes.size();
  for (const std::uint64_t chain : chains) hash = mix(hash ^ mix(chain)) + 0x9E3779B97F4A7C15u;
  return hash;
}

std::uint64_t hash_pair(std::uint64_t first, std::uint64_t second) {
  return mix(mix(first + 0x9E3779B97F4A7C15u) ^ second) + second;
}

}  // namespace cifar_mpi
