#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/value_type.hpp"

namespace cifar_mpi::cuda {

enum class Epilogue : std::uint8_t { none, bias, bias_relu };

/// d[m, n] = op(a) · op(b), all row-major without gaps.
struct MatmulShape {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool transpose_a = false;  ///< a lies as [k, m]
  bool transpose_b = false;  ///< b lies as [n, k]
  ValueType in = ValueType::fp32;
  ValueType out = ValueType::fp32;
  bool tf32 = false;
  Epilogue epilogue = Epilogue::none;  ///< adds bias[n] of type `out`, then max(·, 0)
  /// Slices of k, each a separate fp32 product, added in a fixed order: a of k rows (transposed), b too, d
  /// fp32, no epilogue.
  int slices = 1;

  bool operator==(const MatmulShape&) const = default;
};

/// The product for shapes that cuBLASLt does not support. Each slice has its own d after the previous one.
void plain_matmul(cudaStream_t stream, const MatmulShape& shape, const void* a, const void* b, void* d,
                  const void* bias);

}  // namespace cifar_mpi::cuda
