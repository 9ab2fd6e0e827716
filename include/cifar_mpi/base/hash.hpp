#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace cifar_mpi {

/// A 64-bit hash for comparing copies; not cryptographic. Depends on the bytes alone. Runs at about memory speed.
std::uint64_t hash_bytes(std::span<const std::byte> bytes);

/// 64 bits that depend on both numbers and on their order.
std::uint64_t hash_pair(std::uint64_t first, std::uint64_t second);

}  // namespace cifar_mpi
