#pragma once

#include <cstddef>
#include <cstdint>

#include "cifar_mpi/base/shape.hpp"
#include "cifar_mpi/engine/backend.hpp"
#include "cifar_mpi/model/layer.hpp"
#include "cpu/simd.hpp"

/// The convolution that reads the images, with the max-pooling behind it: one image at a time, directly.
///
/// Images have few channels, so a convolution has few terms: 75 for 5x5 of 3 channels. Their weights stay in the first cache,
/// and tiles of places by output channels in registers. The forward pass is bound by its multiplications. The weight gradient
/// is not: after a max-pooling of stride s only one of s² places has a gradient, another one for each channel. For each
/// pooled place and tap the values that its candidates read stand in a table, from which one permutation takes the one of each
/// channel's choice, so that a multiplication is made for each pooled place instead of each place.
namespace cifar_mpi::cpu {

/// One layer of images NCHW, pooled values NHWC; both sides as their layers pad.
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

/// Floats that begin at cache lines when what stands before them does.
constexpr std::size_t whole_lines(std::ptrdiff_t floats) {
  return static_cast<std::size_t>((floats + 15) / 16 * 16);
}

/// `scratch` is in floats, 64-byte aligned. Weights are [kernel, kernel, in, out]; biases and their sums may be null.
struct ImageForward {
  std::size_t (*scratch_floats)(const ImageConvShape& shape) = nullptr;
  /// One image. `choices` [pooled values] receive the candidate that was the largest, the first of equals, unless they are
  /// null. In bf16 the results of the convolution are rounded before they are compared, as if they had been stored.
  void (*run)(const ImageConvShape& shape, const std::byte* image, const float* weights, const float* biases,
              float* scratch, std::byte* dst, std::uint8_t* choices) = nullptr;
};

struct ImageGradient {
  std::size_t (*scratch_floats)(const ImageConvShape& shape) = nullptr;
  /// Adds the gradients that one image gives. `grad_dst` is of the pooled values, masked by the ReLU.
  void (*run)(const ImageConvShape& shape, const std::byte* image, const std::byte* grad_dst,
              const std::uint8_t* choices, float* scratch, float* sum_weights, float* sum_biases) = nullptr;
};

/// `precision`, of images and pooled values, is fp32 or bf16.
ImageForward image_forward(VectorSet set, engine::Precision precision);
ImageGradient image_gradient(VectorSet set, engine::Precision precision);

}  // namespace cifar_mpi::cpu
