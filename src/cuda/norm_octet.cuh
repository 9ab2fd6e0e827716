#pragma once

#include "cuda/launch.cuh"
#include "cuda/norm_math.hpp"
#include "cuda/octet.cuh"

/// The formulas of a normalization for an octet of channels; its radius is at most half an octet, and best a
/// constant.
namespace cifar_mpi::cuda {

/// Sixteen channels: those of an octet and the four on either side, zero outside the pixel.
struct Neighbours {
  float values[2 * kOctet];
};
constexpr int kOwn = kOctet / 2;  ///< where the octet begins

/// `octet` is that of group `group` of `groups`, with the others of the pixel around it.
template <class T>
__device__ Neighbours neighbours_of(const T* octet, int group, int groups) {
  Neighbours all{};
  const Octet<float> own = to_floats(load_octet(octet));
  for (int i = 0; i < kOctet; ++i) all.values[kOwn + i] = own.values[i];
  if (group > 0) {
    const Quad<T> before = load_quad(octet - kOwn);
    for (int i = 0; i < kOwn; ++i) all.values[i] = to_float(before.values[i]);
  }
  if (group + 1 < groups) {
    const Quad<T> behind = load_quad(octet + kOctet);
    for (int i = 0; i < kOwn; ++i) all.values[kOwn + kOctet + i] = to_float(behind.values[i]);
  }
  return all;
}

template <class T>
__device__ Octet<T> normalize(const NormRule& rule, const Neighbours& x) {
  const auto read = [&](int i) { return x.values[i]; };
  Octet<float> y;
  for (int i = 0; i < kOctet; ++i) {
    const float base = norm_base(rule, 2 * kOctet, kOwn + i, read);
    y.values[i] = read(kOwn + i) * norm_scale(rule, base, FastMath{});
  }
  return from_floats<T>(y);
}

struct OctetTerms {
  Octet<float> directs, shares;
};
template <class T>
__device__ OctetTerms terms_of(const NormRule& rule, const Neighbours& x, const Octet<T>& grad_y) {
  const auto read = [&](int i) { return x.values[i]; };
  OctetTerms terms;
  for (int i = 0; i < kOctet; ++i) {
    const NormTerms of = norm_terms(rule, 2 * kOctet, kOwn + i, to_float(grad_y.values[i]), read, FastMath{});
    terms.directs.values[i] = of.direct;
    terms.shares.values[i] = of.share;
  }
  return terms;
}

__device__ inline Octet<float> gradient_of(const NormRule& rule, const Octet<float>& x,
                                           const Octet<float>& directs, const Neighbours& shares) {
  const auto read = [&](int i) { return shares.values[i]; };
  Octet<float> grad;
  for (int i = 0; i < kOctet; ++i) {
    grad.values[i] = norm_gradient(rule, 2 * kOctet, kOwn + i, x.values[i], directs.values[i], read);
  }
  return grad;
}

}  // namespace cifar_mpi::cuda
