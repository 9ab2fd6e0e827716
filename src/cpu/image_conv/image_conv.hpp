#pragma once

#include <string>

#include "cifar_mpi/engine/program.hpp"
#include "cpu/image_conv/image_kernels.hpp"

/// The passes of the convolution that reads the images as tasks, see image_kernels.hpp.
///
/// Threads share the images of a piece; after each piece outstanding collectives can make progress.
namespace cifar_mpi::cpu {

struct ImageConv {
  ImageConvShape shape;
  engine::Precision precision = engine::Precision::fp32;
  VectorSet set = VectorSet::portable;
  int batch = 0;
  int threads = 1;
  ImageForward forward;    ///< of `set` and `precision`
  ImageGradient gradient;  ///< of `set` and `precision`

  std::size_t value_bytes() const { return precision == engine::Precision::bf16 ? 2 : 4; }
  std::size_t choices() const { return static_cast<std::size_t>(batch) * shape.pooled_values(); }
  /// Floats of scratch memory for each pass; each thread has its own part.
  std::size_t forward_scratch() const {
    return forward.scratch_floats(shape) * static_cast<std::size_t>(threads);
  }
  std::size_t gradient_scratch() const {
    return gradient.scratch_floats(shape) * static_cast<std::size_t>(threads);
  }
  /// Floats of the sums of all threads except the first.
  std::size_t partial_floats() const {
    return (shape.weight_floats() + static_cast<std::size_t>(shape.out_channels)) *
           static_cast<std::size_t>(threads - 1);
  }
};

/// Addresses in one program; images are of the whole batch, NCHW, pooled values NHWC, weights [kernel,
/// kernel, in, out].
struct ImageConvMemory {
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  const std::byte* grad_dst = nullptr;
  std::uint8_t* choices = nullptr;  ///< [choices()]; null: the gradient is not needed
  float* scratch = nullptr;         ///< [forward_scratch()] or [gradient_scratch()]
  float* partial = nullptr;         ///< [partial_floats()]
};

/// `weights` rounded to bf16, as fp32.
engine::Task plan_image_conv_weights(const std::string& name, const ImageConv& conv, const float* weights,
                                     float* rounded);
/// `biases` may be null.
engine::Task plan_image_conv_forward(const std::string& name, const ImageConv& conv,
                                     const ImageConvMemory& memory, const float* weights,
                                     const float* biases);
/// `grad_biases` may be null. Each thread sums its images in order, then the threads' sums are added in
/// order.
engine::Task plan_image_conv_gradient(const std::string& name, const ImageConv& conv,
                                      const ImageConvMemory& memory, float* grad_weights, float* grad_biases);

}  // namespace cifar_mpi::cpu
