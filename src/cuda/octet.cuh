#pragma once

#include "cuda/numbers.cuh"

namespace cifar_mpi::cuda {

/// So many values side by side, which a thread moves at once.
template <class T, int kWidth>
struct alignas(kWidth * sizeof(T) < 16 ? kWidth * sizeof(T) : 16) Slice {
  T values[kWidth];
};

/// 16 bytes of bf16, two times 16 of fp32, 8 of taps.
constexpr int kOctet = 8;
template <class T>
using Octet = Slice<T, kOctet>;

/// Addresses are those of an octet: a multiple of kOctet values behind an aligned one.
template <class T>
__device__ Octet<T> load_octet(const T* from) {
  return *reinterpret_cast<const Octet<T>*>(from);
}
template <class T>
__device__ void store_octet(T* to, const Octet<T>& octet) {
  *reinterpret_cast<Octet<T>*>(to) = octet;
}

/// Half of that, at an address of its own.
template <class T>
using Quad = Slice<T, kOctet / 2>;
template <class T>
__device__ Quad<T> load_quad(const T* from) {
  return *reinterpret_cast<const Quad<T>*>(from);
}

template <class T>
__device__ Octet<float> to_floats(const Octet<T>& octet) {
  Octet<float> floats;
  for (int i = 0; i < kOctet; ++i) floats.values[i] = to_float(octet.values[i]);
  return floats;
}
template <class T>
__device__ Octet<T> from_floats(const Octet<float>& floats) {
  Octet<T> octet;
  for (int i = 0; i < kOctet; ++i) octet.values[i] = from_float<T>(floats.values[i]);
  return octet;
}
/// Two at a time: one instruction.
template <>
__device__ inline Octet<Bf16> from_floats<Bf16>(const Octet<float>& floats) {
  Octet<Bf16> octet;
  for (int i = 0; i < kOctet; i += 2) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(floats.values[i], floats.values[i + 1]);
    octet.values[i] = two.x;
    octet.values[i + 1] = two.y;
  }
  return octet;
}

}  // namespace cifar_mpi::cuda
