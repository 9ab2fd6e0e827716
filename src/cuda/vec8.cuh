#pragma once

#include "cuda/numbers.cuh"

namespace cifar_mpi::cuda {

/// Adjacent values that a thread moves at once.
template <class T, int kWidth>
struct alignas(kWidth * sizeof(T) < 16 ? kWidth * sizeof(T) : 16) Slice {
  T values[kWidth];
};

/// 16 bytes of bf16, two times 16 of fp32, 8 of taps.
constexpr int kVec8 = 8;
template <class T>
using Vec8 = Slice<T, kVec8>;

/// Addresses must be those of a vec8: a multiple of kVec8 values from an aligned one.
template <class T>
__device__ Vec8<T> load_vec8(const T* from) {
  return *reinterpret_cast<const Vec8<T>*>(from);
}
template <class T>
__device__ void store_vec8(T* to, const Vec8<T>& vec8) {
  *reinterpret_cast<Vec8<T>*>(to) = vec8;
}

/// Half of that, at an address of its own.
template <class T>
using Quad = Slice<T, kVec8 / 2>;
template <class T>
__device__ Quad<T> load_quad(const T* from) {
  return *reinterpret_cast<const Quad<T>*>(from);
}

template <class T>
__device__ Vec8<float> to_floats(const Vec8<T>& vec8) {
  Vec8<float> floats;
  for (int i = 0; i < kVec8; ++i) floats.values[i] = to_float(vec8.values[i]);
  return floats;
}
template <class T>
__device__ Vec8<T> from_floats(const Vec8<float>& floats) {
  Vec8<T> vec8;
  for (int i = 0; i < kVec8; ++i) vec8.values[i] = from_float<T>(floats.values[i]);
  return vec8;
}
/// Two at a time: one instruction.
template <>
__device__ inline Vec8<Bf16> from_floats<Bf16>(const Vec8<float>& floats) {
  Vec8<Bf16> vec8;
  for (int i = 0; i < kVec8; i += 2) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(floats.values[i], floats.values[i + 1]);
    vec8.values[i] = two.x;
    vec8.values[i + 1] = two.y;
  }
  return vec8;
}

/// Channels x of a pixel as Ts, with their biases, after the ReLU; zero biases change nothing.
template <class T, int kWidth>
__device__ void activate(const float (&bias)[kWidth], float (&x)[kWidth]) {
  for (int i = 0; i < kWidth; ++i) x[i] = rectified(to_float(from_float<T>(x[i] + bias[i])));
}
template <class T>
__device__ Vec8<float> activated(const Activation& activation, int group, Vec8<float> x) {
  if (!activation.relu) return x;
  Vec8<float> bias = {};
  if (activation.bias != nullptr) bias = load_vec8(activation.bias + group * kVec8);
  activate<T>(bias.values, x.values);
  return x;
}

}  // namespace cifar_mpi::cuda
