#pragma once

#include "cifar_mpi/base/bf16.hpp"

/// Overloads that let one loop serve both element types.
namespace cifar_mpi::cpu {

using cifar_mpi::bf16;
using cifar_mpi::to_bf16;
using cifar_mpi::to_float;

constexpr float to_float(float value) { return value; }
template <class T>
constexpr T from_float(float value);
template <>
constexpr float from_float<float>(float value) {
  return value;
}
template <>
constexpr bf16 from_float<bf16>(float value) {
  return to_bf16(value);
}

}  // namespace cifar_mpi::cpu
