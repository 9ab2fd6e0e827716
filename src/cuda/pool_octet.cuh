#pragma once

#include <bit>

#include "cuda/launch.cuh"
#include "cuda/norm_pool_math.hpp"
#include "cuda/octet.cuh"

/// Max-pooling by windows of kPoolKernel with stride kPoolStride, for an octet of channels.
namespace cifar_mpi::cuda {

/// Numbers of 16 bits for the channels of an octet, two to a word.
struct Halves {
  unsigned words[kOctet / 2];
};

/// All bits of a half set where `a` is greater.
__device__ inline Halves greater(const Octet<Bf16>& a, const Octet<Bf16>& b) {
  Halves mask;
  for (int i = 0; i < kOctet; i += 2) {
    mask.words[i / 2] = __hgt2_mask({a.values[i], a.values[i + 1]}, {b.values[i], b.values[i + 1]});
  }
  return mask;
}
__device__ inline Halves greater(const Octet<float>& a, const Octet<float>& b) {
  Halves mask;
  for (int i = 0; i < kOctet; i += 2) {
    mask.words[i / 2] =
        (a.values[i] > b.values[i] ? 0xffffu : 0u) | (a.values[i + 1] > b.values[i + 1] ? 0xffff0000u : 0u);
  }
  return mask;
}

/// a where the mask is set, else b.
__device__ inline Halves select(const Halves& mask, const Halves& a, const Halves& b) {
  Halves chosen;
  for (int i = 0; i < kOctet / 2; ++i) {
    chosen.words[i] = (a.words[i] & mask.words[i]) | (b.words[i] & ~mask.words[i]);
  }
  return chosen;
}
__device__ inline Octet<Bf16> select(const Halves& mask, const Octet<Bf16>& a, const Octet<Bf16>& b) {
  return std::bit_cast<Octet<Bf16>>(select(mask, std::bit_cast<Halves>(a), std::bit_cast<Halves>(b)));
}
__device__ inline Octet<float> select(const Halves& mask, const Octet<float>& a, const Octet<float>& b) {
  Octet<float> chosen;
  for (int i = 0; i < kOctet; ++i) {
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
__device__ inline Octet<std::uint8_t> bytes_of(const Halves& halves) {
  Octet<std::uint8_t> bytes;
  for (int i = 0; i < kOctet; ++i) {
    bytes.values[i] = static_cast<std::uint8_t>(halves.words[i / 2] >> (i % 2 * 16));
  }
  return bytes;
}

template <class T>
struct OctetChoice {
  Octet<T> values;
  Octet<std::uint8_t> taps;
};

/// pool_choose for an octet; `read(y, x)` gives one. Places outside the image are replaced by the nearest
/// inside, which the window holds too: a second time it does not win, and its tap is its own.
template <class T, class Read>
__device__ OctetChoice<T> choose(const PoolPlace& place, int oy, int ox, bool relu, Read read) {
  const int top = kPoolStride * oy - place.before_y, left = kPoolStride * ox - place.before_x;
  Octet<T> best;
  Halves taps;
  for (int ky = 0; ky < kPoolKernel; ++ky) {
    const int y = nearest(top + ky, place.in_height);
    for (int kx = 0; kx < kPoolKernel; ++kx) {
      const int x = nearest(left + kx, place.in_width);
      const Octet<T> values = read(y, x);
      const Halves tap = halves_of(static_cast<unsigned>((y - top) * kPoolKernel + x - left));
      const bool first = ky == 0 && kx == 0;
      const Halves wins = first ? halves_of(0xffffu) : greater(values, best);
      best = first ? values : select(wins, values, best);
      taps = first ? tap : select(wins, tap, taps);
    }
  }
  if (relu) taps = select(greater(best, Octet<T>{}), taps, halves_of(kNoTap));
  return {best, bytes_of(taps)};
}

/// A window's gradient and taps, of one octet.
struct Window {
  Octet<float> grad;
  Octet<std::uint8_t> taps;
};

/// Adds what the window gives to a place that it holds as tap `tap`.
__device__ inline void take(const Window& window, int tap, Octet<float>& sum) {
  for (int i = 0; i < kOctet; ++i) {
    if (window.taps.values[i] == tap) sum.values[i] += window.grad.values[i];
  }
}

}  // namespace cifar_mpi::cuda
