#pragma once

#include <bit>

#include "cuda/launch.cuh"
#include "cuda/lrn_pool_math.hpp"
#include "cuda/vec8.cuh"

/// Max-pooling by windows of kPoolKernel with stride kPoolStride, for a vec8 of channels.
namespace cifar_mpi::cuda {

/// 16-bit numbers for the channels of a vec8, two per word.
struct Halves {
  unsigned words[kVec8 / 2];
};

/// All bits of a half set where `a` is greater.
__device__ inline Halves greater(const Vec8<Bf16>& a, const Vec8<Bf16>& b) {
  Halves mask;
  for (int i = 0; i < kVec8; i += 2) {
    mask.words[i / 2] = __hgt2_mask({a.values[i], a.values[i + 1]}, {b.values[i], b.values[i + 1]});
  }
  return mask;
}
__device__ inline Halves greater(const Vec8<float>& a, const Vec8<float>& b) {
  Halves mask;
  for (int i = 0; i < kVec8; i += 2) {
    mask.words[i / 2] =
        (a.values[i] > b.values[i] ? 0xffffu : 0u) | (a.values[i + 1] > b.values[i + 1] ? 0xffff0000u : 0u);
  }
  return mask;
}

/// a where the mask is set, else b.
__device__ inline Halves select(const Halves& mask, const Halves& a, const Halves& b) {
  Halves chosen;
  for (int i = 0; i < kVec8 / 2; ++i) {
    chosen.words[i] = (a.words[i] & mask.words[i]) | (b.words[i] & ~mask.words[i]);
  }
  return chosen;
}
__device__ inline Vec8<Bf16> select(const Halves& mask, const Vec8<Bf16>& a, const Vec8<Bf16>& b) {
  return std::bit_cast<Vec8<Bf16>>(select(mask, std::bit_cast<Halves>(a), std::bit_cast<Halves>(b)));
}
__device__ inline Vec8<float> select(const Halves& mask, const Vec8<float>& a, const Vec8<float>& b) {
  Vec8<float> chosen;
  for (int i = 0; i < kVec8; ++i) {
    const unsigned half = i % 2 == 0 ? 0xffffu : 0xffff0000u;
    chosen.values[i] = (mask.words[i / 2] & half) != 0 ? a.values[i] : b.values[i];
  }
  return chosen;
}

__device__ inline Halves halves_of(unsigned value) {
  Halves all;
  for (unsigned& word : all.words) word = value << 16 | value;
  return all;
}
__device__ inline Vec8<std::uint8_t> bytes_of(const Halves& halves) {
  Vec8<std::uint8_t> bytes;
  for (int i = 0; i < kVec8; ++i) {
    bytes.values[i] = static_cast<std::uint8_t>(halves.words[i / 2] >> (i % 2 * 16));
  }
  return bytes;
}

template <class T>
struct Vec8Choice {
  Vec8<T> values;
  Vec8<std::uint8_t> argmax;
};

/// pool_choose and through_relu for the vec8 of channels `group`; `read(y, x)` returns one. Places outside
/// the image are replaced by the nearest inside, which the window also contains: the second time it does not
/// win, and its tap stays its own.
template <class T, class Read>
__device__ Vec8Choice<T> choose(const PoolPlace& place, int oy, int ox, const Activation& activation,
                                int group, Read read) {
  const int top = kPoolStride * oy - place.before_y, left = kPoolStride * ox - place.before_x;
  Vec8<T> best;
  Halves argmax;
  for (int ky = 0; ky < kPoolKernel; ++ky) {
    const int y = nearest(top + ky, place.in_height);
    for (int kx = 0; kx < kPoolKernel; ++kx) {
      const int x = nearest(left + kx, place.in_width);
      const Vec8<T> values = read(y, x);
      const Halves tap = halves_of(static_cast<unsigned>((y - top) * kPoolKernel + x - left));
      const bool first = ky == 0 && kx == 0;
      const Halves wins = first ? halves_of(0xffffu) : greater(values, best);
      best = first ? values : select(wins, values, best);
      argmax = first ? tap : select(wins, tap, argmax);
    }
  }
  if (activation.relu) {
    best = from_floats<T>(activated<T>(activation, group, to_floats(best)));
    argmax = select(greater(best, Vec8<T>{}), argmax, halves_of(kNoTap));
  }
  return {best, bytes_of(argmax)};
}

/// A window's gradient and argmax for one vec8.
struct Window {
  Vec8<float> grad;
  Vec8<std::uint8_t> argmax;
};

/// Adds the window's gradient to a place that is its tap `tap`.
__device__ inline void take(const Window& window, int tap, Vec8<float>& sum) {
  for (int i = 0; i < kVec8; ++i) {
    if (window.argmax.values[i] == tap) sum.values[i] += window.grad.values[i];
  }
}

}  // namespace cifar_mpi::cuda
