#pragma once

#include <cstddef>
#include <cstdint>

#include "cifar_mpi/base/shape.hpp"
#include "cifar_mpi/engine/backend.hpp"
#include "cifar_mpi/model/layer.hpp"
#include "cpu/simd.hpp"

/// The convolution that reads the images, with its max-pooling: one image at a time, directly.
///
/// Images have few channels, so a convolution has few terms: 75 for 5x5 with 3 channels. Their weights stay
/// in the L1 cache, and tiles of places by output channels in registers. The forward pass is bound by
/// multiplications. The weight gradient needs fewer: after a max-pooling of stride s only one of s² places
/// has a gradient, a different one for each channel. A table per pooled place and tap holds the values that
/// its candidates read; one permutation picks the value for each channel's choice, so the pass multiplies
/// once per pooled place instead of once per place.
namespace cifar_mpi::cpu {

/// One layer: images are NCHW, pooled values NHWC; each is padded as its layer says.
struct ImageConvShape {
  Extent in;
  int out_channels = 0;  ///< a multiple of the vector set's lanes
  int kernel = 0;
  int pool_kernel = 0;  ///< at most kMostPoolKernel
  int pool_stride = 0;
  bool relu = false;  ///< between the two

  Extent pooled() const {
    return {model::same_padding(in.height, pool_kernel, pool_stride).outputs,
            model::same_padding(in.width, pool_kernel, pool_stride).outputs, out_channels};
  }
  std::size_t image_values() const { return static_cast<std::size_t>(in.count()); }
  std::size_t pooled_values() const { return static_cast<std::size_t>(pooled().count()); }
  std::size_t weight_floats() const {
    return static_cast<std::size_t>(kernel) * kernel * in.channels * out_channels;
  }
};

/// Candidates of a pooling have numbers below 16, row by row of its window.
inline constexpr int kMostPoolKernel = 4;

/// Floats up to the next cache line, if preceding data is aligned.
constexpr std::size_t whole_lines(std::ptrdiff_t floats) {
  return static_cast<std::size_t>((floats + 15) / 16 * 16);
}

/// `scratch` is in floats, 64-byte aligned. Weights are [kernel, kernel, in, out]; biases and their sums may be null.
struct ImageForward {
  std::size_t (*scratch_floats)(const ImageConvShape& shape) = nullptr;
  /// One image. `choices` [pooled values], unless null, receive the number of the largest candidate, the
  /// first of equals. In bf16 the convolution's results are rounded before the comparison, as if they had
  /// been stored.
  void (*run)(const ImageConvShape& shape, const std::byte* image, const float* weights, const float* biases,
              float* scratch, std::byte* dst, std::uint8_t* choices) = nullptr;
};

struct ImageGradient {
  std::size_t (*scratch_floats)(const ImageConvShape& shape) = nullptr;
  /// Adds the gradients of one image. `grad_dst` belongs to the pooled values and is masked by the ReLU.
  void (*run)(const ImageConvShape& shape, const std::byte* image, const std::byte* grad_dst,
              const std::uint8_t* choices, float* scratch, float* sum_weights, float* sum_biases) = nullptr;
};

/// `precision`, of images and pooled values, is fp32 or bf16.
ImageForward image_forward(VectorSet set, engine::Precision precision);
ImageGradient image_gradient(VectorSet set, engine::Precision precision);

}  // namespace cifar_mpi::cpu
