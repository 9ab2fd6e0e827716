#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "cifar_mpi/base/shape.hpp"
#include "cifar_mpi/model/layer.hpp"
#include "cpu/bf16.hpp"

/// The weight gradient of a convolution in bf16 on the matrix unit AMX, for activations in NHWC.
///
/// For tap (ky, kx), with y and x over the output and s the stride,
///
///   gw[ky, kx, i, o] = Σ_n,y,x src[n, s·y + ky − before, s·x + kx − before, i] · grad_dst[n, y, x, o],
///
/// a product of a matrix [channels in, pixels] with one [pixels, channels out]. Both are copied into the
/// order in which tiles of AMX load them: `src` transposed, once for each kx and for each remainder of a row
/// modulo s, so that all ky read one copy at different rows, and any width gives full tiles of 32 pixels;
/// `grad_dst` in pairs of pixels. As many images as fit the cache are copied, then a block of up to 2x2 or
/// 3x1 tiles of sums stays in registers over all of them.
///
/// oneDNN 2.6 converts in every call and spends most of its time on it. On a Xeon with AMX its kernel reaches
/// 0.10 to 0.14 TFLOP/s with the layers of resnet20 and 0.07 to 0.22 with those of fast94.
namespace cifar_mpi::cpu {

class AmxGradient {
 public:
  /// Empty for a layer with fewer than 16 channels on a side, with biases, or with a kernel above 3 or a
  /// stride above 2.
  static std::optional<AmxGradient> plan(const model::Conv2d& layer, const Extent& in, const Extent& out);

  /// Operands of one call.
  struct Memory {
    const bf16* src = nullptr;       ///< [samples, h, w, in]
    const bf16* grad_dst = nullptr;  ///< [samples, h, w, out]
    int samples = 0;
    float* grad_weights = nullptr;  ///< [k, k, in, out]
    bool adds = false;              ///< to grad_weights; else stores there
  };
  /// The sum over all samples, in their order. `scratch` is [scratch_bytes()] and aligned to 64 bytes. Calls
  /// `progress` now and then.
  void run(const Memory& memory, std::byte* scratch, const std::function<void()>& progress) const;
  std::size_t scratch_bytes() const;

 private:
  AmxGradient(const model::Conv2d& layer, const Extent& in, const Extent& out);
  std::size_t sums_floats() const;
  std::size_t images_at_once() const;
  void copy_src(const bf16* image, bf16* to) const;
  void copy_grad(const bf16* image, bf16* to) const;
  void multiply(const bf16* src, const bf16* grad, int images, bool first, float* sums) const;
  void store(const float* sums, const Memory& memory) const;

  int in_ = 0, out_ = 0;  ///< channels
  int src_pixels_ = 0;    ///< of an image of `src`
  int dst_pixels_ = 0;    ///< of an image of `grad_dst`
  int kernel_ = 0;
  int in_tiles_ = 0;  ///< 16 channels each; the last one is filled with zeros
  int out_tiles_ = 0;
  int steps_ = 0;                                  ///< 32 pixels each; the last one is filled with zeros
  int pitch_ = 0;                                  ///< pixels from channel to channel of a copy
  std::size_t src_values_ = 0;                     ///< of the copies of an image of `src`
  std::size_t grad_values_ = 0;                    ///< of the copy of an image of `grad_dst`
  int images_ = 0;                                 ///< copied at a time
  std::vector<std::vector<std::int32_t>> copies_;  ///< the pixel of `src` at each place of a copy; −1: zero
  /// [kx, in_tiles, ky] where a tap's tile of `src` begins in the copies of an image. Neighbours of one kx
  /// read nearly the same memory.
  std::vector<std::ptrdiff_t> tiles_;
};

}  // namespace cifar_mpi::cpu
