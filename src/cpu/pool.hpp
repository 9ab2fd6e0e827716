#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "cifar_mpi/base/shape.hpp"
#include "cifar_mpi/engine/backend.hpp"
#include "cifar_mpi/engine/program.hpp"
#include "cifar_mpi/model/layer.hpp"
#include "cpu/simd.hpp"

/// Max-pooling in any blocked layout, over vectors of channels.
///
/// Limit: memory. The forward pass reads each value once and stores a byte per pooled value: the place of the
/// largest value in its window. The backward pass reads these bytes instead of the values. Each input sums,
/// in the order of the windows, the gradients of the windows that chose it, so each is written once and
/// threads need no synchronization. Both passes of the tutorial's pool2 at batch 128, one thread of Zen 4, ms
/// (oneDNN's): AVX-512 0.63 (0.58), in bf16 0.79 (0.47), AVX2 1.1 (4.2).
namespace cifar_mpi::cpu {

/// Places of a window are numbered row by row, in a byte.
inline constexpr int kMostPoolWindow = 16;

/// One layer for one batch. An image is [blocks][height][width][block], padding included: NHWC is one block
/// of all channels, NCHW has one block per channel, and blocks of 8 and 16 are oneDNN's formats.
struct Pool {
  model::MaxPool layer;  ///< a kernel of at most kMostPoolWindow; padding as padding_of
  Extent in;
  int batch = 0;
  int blocks = 0;
  int block = 0;
  engine::Precision precision =
      engine::Precision::fp32;  ///< of values and gradients: bf16 or fp32 (any other)
  VectorSet set =
      VectorSet::portable;  ///< no more lanes than `block`; blocks below 4 are processed value by value

  Extent out() const {
    return {model::padding_of(layer, in.height).outputs, model::padding_of(layer, in.width).outputs,
            in.channels};
  }
  std::size_t values_in(const Extent& image) const {
    return static_cast<std::size_t>(batch) * static_cast<std::size_t>(blocks * block) *
           static_cast<std::size_t>(image.height * image.width);
  }
  std::size_t value_bytes() const { return precision == engine::Precision::bf16 ? 2 : 4; }
};

/// The widest vectors here that a block fills.
VectorSet pool_vectors(int block);

/// The largest value of each window, the first of equals; comparisons with NaN are false.
///
///   src      [values_in(in)]
///   dst      [values_in(out())]
///   choices  [values_in(out())], receives the place of the largest value; null: no gradient is needed
///   bits     do not depend on the number of threads or the vectors, in both passes
engine::Task plan_pool_forward(const std::string& name, const Pool& pool, const std::byte* src,
                               std::byte* dst, std::uint8_t* choices);

/// Each input receives the fp32 sum of the gradients of the windows that chose it, in their row-by-row order.
engine::Task plan_pool_backward(const std::string& name, const Pool& pool, const std::byte* grad_dst,
                                const std::uint8_t* choices, std::byte* grad_src);

/// The passes of one block of one image, for kernels that pool in the cache what they compute.
struct BlockPool {
  std::function<void(const std::byte* src, std::byte* dst, std::uint8_t* choices)> forward;
  std::function<void(const std::byte* grad_dst, const std::uint8_t* choices, std::byte* grad_src)> backward;
};
BlockPool plan_block_pool(const Pool& pool);

}  // namespace cifar_mpi::cpu
