#pragma once

#include <cstddef>

#include "cifar_mpi/engine/backend.hpp"
#include "cpu/lrn.hpp"

/// Common declarations of the versions of the normalization; formulas and layouts are in lrn.hpp.
namespace cifar_mpi::cpu {

struct Lrn {
  LrnShape shape;
  int radius = 0;
  float bias = 0.0f;
  float alpha = 0.0f;
  float beta = 0.0f;
  bool mask_relu = false;
};

/// Normalizes one image; `src` and `dst` begin with the first image of the batch.
using LrnForwardImage = void (*)(const Lrn& lrn, int image, const std::byte* src, std::byte* dst);
/// The gradient of one image.
using LrnBackwardImage = void (*)(const Lrn& lrn, int image, const std::byte* src, const std::byte* grad_dst,
                                  std::byte* grad_src);

/// Versions for AVX-512 that keep the channels of a pixel in registers: radius 4, exponent 3/4, a positive
/// bias, and 16, 32, 64 or 128 channels, NHWC or in blocks of 16. Null for other shapes and processors.
LrnForwardImage lrn_forward_avx512(const Lrn& lrn, engine::Precision precision);
LrnBackwardImage lrn_backward_avx512(const Lrn& lrn, engine::Precision precision);

}  // namespace cifar_mpi::cpu
