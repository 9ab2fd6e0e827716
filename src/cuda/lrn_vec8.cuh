#pragma once

#include "cuda/launch.cuh"
#include "cuda/lrn_math.hpp"
#include "cuda/vec8.cuh"

/// The formulas of a normalization for an vec8 of channels; its radius is at most half an vec8, and best a
/// constant.
namespace cifar_mpi::cuda {

/// Sixteen channels: those of an vec8 and the four on either side, zero outside the pixel.
struct Neighbours {
  float values[2 * kVec8];
};
constexpr int kOwn = kVec8 / 2;  ///< where the vec8 begins

/// `vec8` is that of group `group` of `groups`, with the others of the pixel around it.
template <class T>
__device__ Neighbours neighbours_of(const T* vec8, int group, int groups) {
  Neighbours all{};
  const Vec8<float> own = to_floats(load_vec8(vec8));
  for (int i = 0; i < kVec8; ++i) all.values[kOwn + i] = own.values[i];
  if (group > 0) {
    const Quad<T> before = load_quad(vec8 - kOwn);
    for (int i = 0; i < kOwn; ++i) all.values[i] = to_float(before.values[i]);
  }
  if (group + 1 < groups) {
    const Quad<T> behind = load_quad(vec8 + kVec8);
    for (int i = 0; i < kOwn; ++i) all.values[kOwn + kVec8 + i] = to_float(behind.values[i]);
  }
  return all;
}

/// The same, read as `activation` says.
template <class T>
__device__ Neighbours activated_neighbours(const Activation& activation, const T* vec8, int group,
                                           int groups) {
  Neighbours x = neighbours_of(vec8, group, groups);
  if (!activation.relu) return x;
  Neighbours bias{};
  if (activation.bias != nullptr) bias = neighbours_of(activation.bias + group * kVec8, group, groups);
  activate<T>(bias.values, x.values);
  return x;
}

template <class T>
__device__ Vec8<T> normalize(const LrnRule& rule, const Neighbours& x) {
  const auto read = [&](int i) { return x.values[i]; };
  Vec8<float> y;
  for (int i = 0; i < kVec8; ++i) {
    const float base = lrn_base(rule, 2 * kVec8, kOwn + i, read);
    y.values[i] = read(kOwn + i) * lrn_scale(rule, base, FastMath{});
  }
  return from_floats<T>(y);
}

struct Vec8Terms {
  Vec8<float> directs, shares;
};
template <class T>
__device__ Vec8Terms terms_of(const LrnRule& rule, const Neighbours& x, const Vec8<T>& grad_y) {
  const auto read = [&](int i) { return x.values[i]; };
  Vec8Terms terms;
  for (int i = 0; i < kVec8; ++i) {
    const LrnTerms of = lrn_terms(rule, 2 * kVec8, kOwn + i, to_float(grad_y.values[i]), read, FastMath{});
    terms.directs.values[i] = of.direct;
    terms.shares.values[i] = of.share;
  }
  return terms;
}

__device__ inline Vec8<float> gradient_of(const LrnRule& rule, const Vec8<float>& x,
                                          const Vec8<float>& directs, const Neighbours& shares) {
  const auto read = [&](int i) { return shares.values[i]; };
  Vec8<float> grad;
  for (int i = 0; i < kVec8; ++i) {
    grad.values[i] = lrn_gradient(rule, 2 * kVec8, kOwn + i, x.values[i], directs.values[i], read);
  }
  return grad;
}

}  // namespace cifar_mpi::cuda
