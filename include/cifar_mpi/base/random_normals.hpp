#pragma once

#include <cstdint>
#include <span>

/// Many random numbers at once.
namespace cifar_mpi {

/// values[i] = truncated_normal(seed, tensor, i), bit for bit, in a third of the time: computes vectors without the C
/// library's functions, and calls truncated_normal where a rounding or the cut is close.
void truncated_normals(std::uint64_t seed, std::uint32_t tensor, std::span<float> values);

}  // namespace cifar_mpi
