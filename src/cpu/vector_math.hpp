#pragma once

#include "cpu/vectors.hpp"

/// Functions of fp32 vectors; a NaN gives a NaN.
namespace cifar_mpi::cpu {

/// coefficients[0] + x · (coefficients[1] + x · …)
template <class V, int kCount>
[[gnu::always_inline]] inline V polynomial(const V& x, const float (&coefficients)[kCount]) {
  V sum = broadcast<V>(coefficients[kCount - 1]);
  for (int i = kCount - 1; i-- > 0;) sum = sum * x + broadcast<V>(coefficients[i]);
  return sum;
}

/// e^x for x ≤ 88, with a relative error of at most 2.5e-7; 0 below −87.
///
/// e^x = 2^n · e^r with |r| ≤ ln 2 / 2, n the integer nearest to x / ln 2. The Taylor polynomial of degree 7 leaves out less
/// than 0.35^8 / 8! · 1.5 = 9e-9 of e^r. The product of n and the upper part of ln 2, which has 15 bits, is exact.
template <class V>
[[gnu::always_inline]] inline V exp_of(const V& x) {
  constexpr float kTaylor[] = {1.0f,         1.0f,          1.0f / 2.0f,   1.0f / 6.0f,
                               1.0f / 24.0f, 1.0f / 120.0f, 1.0f / 720.0f, 1.0f / 5040.0f};
  constexpr float kPerLog2 = 1.44269504f, kLog2Upper = 0x1.62e4p-1f, kLog2Lower = 1.42860682e-6f;
  constexpr float kToInteger = 0x1.8p23f;  // a sum with it has the integer in its lowest bits
  const V least = broadcast<V>(-87.0f), most = broadcast<V>(88.0f);
  const V bounded = x > most ? most : x < least ? least : x;
  const V shifted = bounded * broadcast<V>(kPerLog2) + broadcast<V>(kToInteger);
  const V n = shifted - broadcast<V>(kToInteger);
  const V r = (bounded - n * broadcast<V>(kLog2Upper)) - n * broadcast<V>(kLog2Lower);
  const BitsOf<V> power = (reinterpret_cast<BitsOf<V>>(shifted) + broadcast_bits<V>(127)) << 23;
  const V value = polynomial(r, kTaylor) * reinterpret_cast<V>(power);
  return x < least ? broadcast<V>(0.0f) : value;
}

template <class V>
[[gnu::always_inline]] inline V magnitude_of(const V& x) {
  return reinterpret_cast<V>(reinterpret_cast<BitsOf<V>>(x) & broadcast_bits<V>(0x7FFFFFFFu));
}

/// 1 / (1 + e^−x), with a relative error of at most 5e-7 above −87.
template <class V>
[[gnu::always_inline]] inline V sigmoid_of(const V& x) {
  const V one = broadcast<V>(1.0f), e = exp_of<V>(-magnitude_of(x));
  return (x < broadcast<V>(0.0f) ? e : one) / (one + e);
}

/// x / (1 + e^−x), or its slope there.
template <bool kSlope, class V>
[[gnu::always_inline]] inline V silu_of(const V& x) {
  const V one = broadcast<V>(1.0f), sigmoid = sigmoid_of(x);
  return kSlope ? sigmoid * (one + x * (one - sigmoid)) : x * sigmoid;
}

/// The normal distribution: Φ(x) = (1 + erf(x/√2)) / 2, and its density times √(2π).
template <class V>
struct Normal {
  V below, bell;
};

/// bell = e^(−x²/2), below = Φ(x), with a relative error of at most 6e-7 + 6e-8 · x² for x ≥ −12.5; smaller values may be 0.
///
/// Φ(−z√2) = erfc(z) / 2 = e^(−z²) · t · q(s), t = 2/(2 + z), s = 2t − 1 = (2 − z)/(2 + z). The polynomial q interpolates
/// erfc(z) · e^(z²) / t at the Chebyshev points of degree 10 over s from −1 to 1; its relative error is below 2.8e-8.
template <class V>
[[gnu::always_inline]] inline Normal<V> normal_of(const V& x) {
  constexpr float kTail[] = {5.107913526e-01f,  3.435803125e-01f,  1.397359458e-01f, 1.822174912e-02f,
                             -1.075331088e-02f, -3.243733075e-03f, 1.533847052e-03f, 4.310400342e-04f,
                             -3.047190996e-04f, -3.676436817e-05f, 4.428842161e-05f};
  const V one = broadcast<V>(1.0f), two = broadcast<V>(2.0f), far = broadcast<V>(40.0f);
  const V size = magnitude_of(x), bounded = size > far ? far : size;
  const V z = bounded * broadcast<V>(0.70710678f), t = two / (two + z);
  const V bell = exp_of<V>(bounded * bounded * broadcast<V>(-0.5f));
  const V tail = broadcast<V>(0.5f) * bell * t * polynomial<V>((two - z) / (two + z), kTail);
  return {x < broadcast<V>(0.0f) ? tail : one - tail, bell};
}

}  // namespace cifar_mpi::cpu
