#include "cpu/bf16.hpp"
#include "cpu/lrn_versions.hpp"
#include "cpu/simd.hpp"

#if defined(__x86_64__)

#include <immintrin.h>

// One pixel at a time, in registers from load to store, so that memory is the limit: for the tutorial's batch
// of 128 in fp32 on one Zen 5 core, both layers take 0.54 ms forward and 1.00 ms backward within a step; the
// portable loops take 1.25 and 2.42, mostly for square roots, divisions and nine loads per window.
namespace cifar_mpi::cpu {
namespace {

constexpr int kLanes = 16;
constexpr int kRadius = 4;

bool knows(const LrnShape& shape, int block) { return block == kLanes || block == shape.channels; }

bool fits(const Lrn& lrn) {
  constexpr float kLeastBias =
      1e-20f;  // s must not vanish: 1/sqrt(0) is infinite, and Newton's step then yields NaN
  return has_avx512() && lrn.radius == kRadius && lrn.beta == 0.75f && lrn.bias >= kLeastBias &&
         lrn.alpha >= 0.0f && knows(lrn.shape, lrn.shape.src_block) && knows(lrn.shape, lrn.shape.dst_block);
}

/// The vectors of one image: channels 16·v … 16·v + 15 of pixel p.
template <class T>
struct Vectors {
  T* first = nullptr;
  std::ptrdiff_t pixel_step = 0;
  std::ptrdiff_t step = 0;

  Vectors(const LrnShape& shape, int block, int image, T* data)
      : first(data + static_cast<std::ptrdiff_t>(image) * shape.pixels * shape.channels),
        pixel_step(block),
        step(block == shape.channels ? kLanes : std::ptrdiff_t{kLanes} * shape.pixels) {}
  T* at(int p, int v) const { return first + p * pixel_step + v * step; }
};

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx2,fma")

// All lanes. The unmasked forms of some intrinsics start from undefined registers, for which g++ 12 warns.
constexpr __mmask16 kAll = 0xFFFF;

inline __m512 load(const float* from) { return _mm512_loadu_ps(from); }
inline __m512 load(const bf16* from) {
  const __m256i upper = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(kAll, _mm512_maskz_cvtepu16_epi32(kAll, upper), 16));
}

inline __m512i upper_halves() {
  return _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0x1F001D, 0x1B0019, 0x170015, 0x130011, 0xF000D, 0xB0009,
                          0x70005, 0x30001);
}

inline void store(float* to, __m512 values) { _mm512_storeu_ps(to, values); }
/// The same bits as to_bf16 for results of arithmetic, whose NaNs are quiet and stay NaN in the upper half.
inline void store(bf16* to, __m512 values) {
  const __m512i bits = _mm512_castps_si512(values);
  const __m512i odd = _mm512_and_si512(_mm512_maskz_srli_epi32(kAll, bits, 16), _mm512_set1_epi32(1));
  const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF));
  const __mmask16 is_number = _mm512_cmp_ps_mask(values, values, _CMP_ORD_Q);
  const __m512i rounded = _mm512_mask_add_epi32(bits, is_number, bits, half);
  // One permutation of half words; a shift and a conversion would take three operations.
  const __m512i upper = _mm512_maskz_permutexvar_epi16(~__mmask32{0}, upper_halves(), rounded);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_maskz_extracti64x4_epi64(0xFF, upper, 0));
}

/// 16 of the 32 values of `low` and `high`, from `kFirst` on.
template <int kFirst>
inline __m512 window(__m512 low, __m512 high) {
  return _mm512_castsi512_ps(
      _mm512_maskz_alignr_epi32(kAll, _mm512_castps_si512(high), _mm512_castps_si512(low), kFirst));
}

/// Replaces each value of a row by the sum of the nine around it: sums of 2, 4 and 8 by doubling, plus one
/// value.
template <int kVectors>
[[gnu::always_inline]] inline void sum_around(__m512 (&row)[kVectors]) {
  const __m512 zero = _mm512_setzero_ps();
  __m512 one[kVectors + 2], two[kVectors + 2], four[kVectors + 1];
  one[0] = window<kLanes - kRadius>(zero, row[0]);
  for (int v = 1; v < kVectors; ++v) one[v] = window<kLanes - kRadius>(row[v - 1], row[v]);
  one[kVectors] = window<kLanes - kRadius>(row[kVectors - 1], zero);
  one[kVectors + 1] = two[kVectors + 1] = zero;
  for (int v = 0; v <= kVectors; ++v) two[v] = one[v] + window<1>(one[v], one[v + 1]);
  for (int v = 0; v <= kVectors; ++v) four[v] = two[v] + window<2>(two[v], two[v + 1]);
  for (int v = 0; v < kVectors; ++v) {
    row[v] = four[v] + window<4>(four[v], four[v + 1]) + window<8>(one[v], one[v + 1]);
  }
}

/// s^(−1/2) to within two units in the last place: 14 bits, then one step of Newton's method.
[[gnu::always_inline]] inline __m512 inverse_root(__m512 s) {
  const __m512 r = _mm512_maskz_rsqrt14_ps(kAll, s);
  const __m512 rest = _mm512_fnmadd_ps(s * r, r, _mm512_set1_ps(1.0f));
  return _mm512_fmadd_ps(r * _mm512_set1_ps(0.5f), rest, r);
}

/// The same for s^(1/2).
[[gnu::always_inline]] inline __m512 square_root(__m512 s) {
  const __m512 inverse = _mm512_maskz_rsqrt14_ps(kAll, s);
  const __m512 r = s * inverse;
  return _mm512_fmadd_ps(inverse * _mm512_set1_ps(0.5f), _mm512_fnmadd_ps(r, r, s), r);
}

/// Powers of a pixel's s = bias + alpha·Σ x²: two inverse roots instead of two roots and one or two
/// divisions.
template <int kVectors>
struct Scales {
  __m512 root[kVectors];   ///< s^(−1/2)
  __m512 power[kVectors];  ///< s^(−3/4)

  [[gnu::always_inline]] inline Scales(const Lrn& lrn, const __m512 (&x)[kVectors]) {
    __m512 s[kVectors];
    for (int v = 0; v < kVectors; ++v) s[v] = x[v] * x[v];
    sum_around(s);
    for (int v = 0; v < kVectors; ++v) {
      s[v] = _mm512_fmadd_ps(_mm512_set1_ps(lrn.alpha), s[v], _mm512_set1_ps(lrn.bias));
      root[v] = inverse_root(s[v]);
      power[v] = root[v] * square_root(root[v]);
    }
  }
};

template <class T, int kVectors>
void forward_image(const Lrn& lrn, int image, const std::byte* src, std::byte* dst) {
  const LrnShape& shape = lrn.shape;
  const Vectors from(shape, shape.src_block, image, reinterpret_cast<const T*>(src));
  const Vectors to(shape, shape.dst_block, image, reinterpret_cast<T*>(dst));
  for (int p = 0; p < shape.pixels; ++p) {
    __m512 x[kVectors];
    for (int v = 0; v < kVectors; ++v) x[v] = load(from.at(p, v));
    const Scales<kVectors> scales(lrn, x);
    for (int v = 0; v < kVectors; ++v) store(to.at(p, v), x[v] * scales.power[v]);
  }
}

template <class T, int kVectors>
void backward_image(const Lrn& lrn, int image, const std::byte* src, const std::byte* grad_dst,
                    std::byte* grad_src) {
  const LrnShape& shape = lrn.shape;
  const Vectors values(shape, shape.src_block, image, reinterpret_cast<const T*>(src));
  const Vectors from(shape, shape.dst_block, image, reinterpret_cast<const T*>(grad_dst));
  const Vectors to(shape, shape.src_block, image, reinterpret_cast<T*>(grad_src));
  const __m512 factor = _mm512_set1_ps(2.0f * lrn.alpha * lrn.beta);
  const __m512 floor = _mm512_set1_ps(lrn.mask_relu ? 0.0f : -__builtin_inff());
  for (int p = 0; p < shape.pixels; ++p) {
    __m512 x[kVectors], g[kVectors], q[kVectors];
    for (int v = 0; v < kVectors; ++v) x[v] = load(values.at(p, v));
    const Scales<kVectors> scales(lrn, x);
    for (int v = 0; v < kVectors; ++v) {
      g[v] = load(from.at(p, v)) * scales.power[v];
      q[v] = g[v] * x[v] * (scales.root[v] * scales.root[v]);
    }
    sum_around(q);
    for (int v = 0; v < kVectors; ++v) {
      const __mmask16 keep = _mm512_cmp_ps_mask(x[v], floor, _CMP_NLE_UQ);
      store(to.at(p, v), _mm512_maskz_fnmadd_ps(keep, factor * x[v], q[v], g[v]));
    }
  }
}

#pragma GCC pop_options

template <class T>
LrnForwardImage forward_for(int channels) {
  switch (channels) {
    case 16:
      return &forward_image<T, 1>;
    case 32:
      return &forward_image<T, 2>;
    case 64:
      return &forward_image<T, 4>;
    case 128:
      return &forward_image<T, 8>;
    default:
      return nullptr;
  }
}

template <class T>
LrnBackwardImage backward_for(int channels) {
  switch (channels) {
    case 16:
      return &backward_image<T, 1>;
    case 32:
      return &backward_image<T, 2>;
    case 64:
      return &backward_image<T, 4>;
    case 128:
      return &backward_image<T, 8>;
    default:
      return nullptr;
  }
}

}  // namespace

LrnForwardImage lrn_forward_avx512(const Lrn& lrn, engine::Precision precision) {
  if (!fits(lrn)) return nullptr;
  return precision == engine::Precision::bf16 ? forward_for<bf16>(lrn.shape.channels)
                                              : forward_for<float>(lrn.shape.channels);
}

LrnBackwardImage lrn_backward_avx512(const Lrn& lrn, engine::Precision precision) {
  if (!fits(lrn)) return nullptr;
  return precision == engine::Precision::bf16 ? backward_for<bf16>(lrn.shape.channels)
                                              : backward_for<float>(lrn.shape.channels);
}

}  // namespace cifar_mpi::cpu

#else

namespace cifar_mpi::cpu {

LrnForwardImage lrn_forward_avx512(const Lrn&, engine::Precision) { return nullptr; }
LrnBackwardImage lrn_backward_avx512(const Lrn&, engine::Precision) { return nullptr; }

}  // namespace cifar_mpi::cpu

#endif
