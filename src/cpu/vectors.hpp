#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "cpu/bf16.hpp"

/// fp32 vectors as compiler extensions, and loops that unroll at compile time. All functions are inlined into
/// kernels of cpu/simd.hpp and take over their instruction set.
namespace cifar_mpi::cpu {

template <class Value, int kLanes>
struct LanesOf {
  typedef Value type __attribute__((vector_size(kLanes * sizeof(Value))));
};
template <int kLanes>
using Vec = typename LanesOf<float, kLanes>::type;

template <class V>
constexpr int kLanesIn = static_cast<int>(sizeof(V) / sizeof(float));
template <class V>
using BitsOf = typename LanesOf<std::uint32_t, kLanesIn<V>>::type;
template <class V>
using IndicesOf = typename LanesOf<std::int32_t, kLanesIn<V>>::type;

template <class Body, int... kIndex>
[[gnu::always_inline]] inline void unrolled_over(const Body& body, std::integer_sequence<int, kIndex...>) {
  (body(std::integral_constant<int, kIndex>{}), ...);
}
/// body(0) … body(kCount − 1), with each index a distinct type. Bodies need __attribute__((always_inline)).
template <int kCount, class Body>
[[gnu::always_inline]] inline void unrolled(const Body& body) {
  if constexpr (kCount > 0) unrolled_over(body, std::make_integer_sequence<int, kCount>{});
}

template <class V>
[[gnu::always_inline]] inline V load(const float* from) {
  V values;
  std::memcpy(&values, from, sizeof values);
  return values;
}

template <class V>
[[gnu::always_inline]] inline V load(const bf16* from) {
  std::uint32_t lanes[kLanesIn<V>];
  for (int lane = 0; lane < kLanesIn<V>; ++lane) lanes[lane] = std::uint32_t{from[lane].bits} << 16;
  V values;
  std::memcpy(&values, lanes, sizeof values);
  return values;
}

/// `value` in all lanes. The array compiles to one instruction; with the usual ways to broadcast a value, g++
/// 12 emits one per lane when it inlines the function into one for another instruction set.
template <class V>
[[gnu::always_inline]] inline V broadcast(float value) {
  float lanes[kLanesIn<V>];
  for (float& lane : lanes) lane = value;
  return load<V>(lanes);
}

/// The same for a number.
template <class V>
[[gnu::always_inline]] inline BitsOf<V> broadcast_bits(std::uint32_t bits) {
  std::uint32_t lanes[kLanesIn<V>];
  for (std::uint32_t& lane : lanes) lane = bits;
  BitsOf<V> values;
  std::memcpy(&values, lanes, sizeof values);
  return values;
}

/// `count` values that lie `step` apart, then zeros.
template <class V, class T>
[[gnu::always_inline]] inline V load_apart(const T* from, std::ptrdiff_t step, int count) {
  V values{};
  if (count >= kLanesIn<V>) {
    for (int lane = 0; lane < kLanesIn<V>; ++lane) values[lane] = to_float(from[lane * step]);
  } else {
    for (int lane = 0; lane < count; ++lane) values[lane] = to_float(from[lane * step]);
  }
  return values;
}

template <class V>
[[gnu::always_inline]] inline void store(float* to, const V& values) {
  std::memcpy(to, &values, sizeof values);
}

/// Prefetches the cache line of `at` into the L2 cache for reading or writing; the address may be invalid.
[[gnu::always_inline]] inline void fetch(const void* at) { __builtin_prefetch(at, 0, 2); }

/// Stores past the caches to an address that is a multiple of the vector's size, so that the cache line is not read first.
/// finish_stores() makes these stores visible to other threads.
template <class V>
[[gnu::always_inline]] inline void store_past_caches(float* to, const V& values) {
#if defined(__x86_64__)
  V& there = *reinterpret_cast<V*>(to);
  if constexpr (sizeof(V) == 64) {
    asm volatile("vmovntps %1, %0" : "=m"(there) : "v"(values));
  } else if constexpr (sizeof(V) == 32) {
    asm volatile("vmovntps %1, %0" : "=m"(there) : "x"(values));
  } else {
    asm volatile("movntps %1, %0" : "=m"(there) : "x"(values));
  }
#else
  store(to, values);
#endif
}
inline void finish_stores() {
#if defined(__x86_64__)
  asm volatile("sfence" ::: "memory");
#endif
}

/// Rounds like to_bf16.
template <class V>
[[gnu::always_inline]] inline void store(bf16* to, const V& values) {
  const BitsOf<V> bits = reinterpret_cast<BitsOf<V>>(values);
  const BitsOf<V> rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const BitsOf<V> quiet_nan = (bits >> 16) | 0x40u;
  const BitsOf<V> chosen = (bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet_nan : rounded;
  const auto halves = __builtin_convertvector(chosen, typename LanesOf<std::uint16_t, kLanesIn<V>>::type);
  std::memcpy(&to->bits, &halves, sizeof halves);
}

/// Converts bytes to numbers, and numbers to bytes by their lowest 8 bits.
template <class V>
[[gnu::always_inline]] inline BitsOf<V> load_bytes(const std::uint8_t* from) {
  std::uint32_t lanes[kLanesIn<V>];
  for (int lane = 0; lane < kLanesIn<V>; ++lane) lanes[lane] = from[lane];
  BitsOf<V> numbers;
  std::memcpy(&numbers, lanes, sizeof numbers);
  return numbers;
}
template <class V>
[[gnu::always_inline]] inline void store_bytes(std::uint8_t* to, const BitsOf<V>& numbers) {
  std::uint32_t lanes[kLanesIn<V>];
  std::memcpy(lanes, &numbers, sizeof lanes);
#pragma omp simd
  for (int lane = 0; lane < kLanesIn<V>; ++lane) to[lane] = static_cast<std::uint8_t>(lanes[lane]);
}

/// Rounds results of arithmetic, whose NaNs have zeros in the lower half, to type T.
template <class T, class V>
[[gnu::always_inline]] inline V as_stored(const V& values) {
  if constexpr (std::is_same_v<T, float>) return values;
  const BitsOf<V> bits = reinterpret_cast<BitsOf<V>>(values);
  return reinterpret_cast<V>((bits + 0x7FFFu + ((bits >> 16) & 1u)) & 0xFFFF0000u);
}

/// values[indices[lane]] in each lane; only the bits of an index below the number of lanes count, which is a
/// power of two.
template <class V>
[[gnu::always_inline]] inline V permuted(const V& values, const IndicesOf<V>& indices) {
#if __has_builtin(__builtin_shuffle)
  return __builtin_shuffle(values, indices);
#else
  V taken;
  for (int lane = 0; lane < kLanesIn<V>; ++lane) taken[lane] = values[indices[lane] & (kLanesIn<V> - 1)];
  return taken;
#endif
}

}  // namespace cifar_mpi::cpu
