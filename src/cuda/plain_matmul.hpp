#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/value_type.hpp"

namespace cifar_mpi::cuda {

/// d[m, n] = op(a) · op(b) (+ bias, then max(·, 0)), row-major: the product for shapes that cuBLASLt does not
/// support.
struct PlainMatmul {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool transpose_a = false;  ///< a lies as [k, m]
  bool transpose_b = false;  ///< b lies as [n, k]
  ValueType in = ValueType::fp32;
  ValueType out = ValueType::fp32;
  bool add_bias = false;  ///< bias[n] of type `out`
  bool relu = false;
  /// Slices of k, each with its own d after the previous one.
  int slices = 1;
};
void plain_matmul(cudaStream_t stream, const PlainMatmul& shape, const void* a, const void* b, void* d,
                  const void* bias);

}  // namespace cifar_mpi::cuda
