#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace cifar_mpi {

/// 64 bits that change when any bit of `bytes` does, but for chance (2^-64); to compare copies, not to resist
/// an attacker. Depends on the bytes alone. About as fast as memory.
std::uint64_t hash_bytes(std::span<const std::byte> bytes);

/// 64 bits that depend on both numbers and on their order.
std::uint64_t hash_pair(std::uint64_t first, std::uint64_t second);

}  // namespace cifar_mpi
