#pragma once

#include <cstddef>

namespace cifar_mpi::comm {

/// dst[i] += src[i]; the arrays do not overlap.
inline void add(float* __restrict dst, const float* __restrict src, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) dst[i] += src[i];
}

/// dst[i] = a[i] + b[i]; dst overlaps neither.
inline void add(float* __restrict dst, const float* a, const float* b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) dst[i] = a[i] + b[i];
}

}  // namespace cifar_mpi::comm
