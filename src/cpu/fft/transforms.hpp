#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cifar_mpi/engine/backend.hpp"
#include "cpu/fft/image_fft.hpp"
#include "cpu/simd.hpp"

/// Conversion between images and their spectra; image_fft.hpp has the formulas and the order of the slots.
namespace cifar_mpi::cpu::fft {

/// The available lengths, ascending.
inline constexpr int kLengths[] = {8, 10, 14, 16, 28, 32};

/// Memory layout of the images of one call, one per lane; steps are in values for images and in floats for
/// spectra.
struct TransformPlace {
  Placement at;
  std::ptrdiff_t row_step = 0;
  std::ptrdiff_t column_step = 0;
  std::ptrdiff_t lane_step = 1;  ///< of the input; output lanes are contiguous
  int lanes = 16;                ///< of the input, unless lane_step is 1; others are zeros
  std::ptrdiff_t slot_step = 0;
  std::ptrdiff_t im_step = 0;        ///< from real to imaginary parts
  std::ptrdiff_t image_next = 0;     ///< to the image of a later call, which is prefetched
  std::ptrdiff_t spectrum_next = 0;  ///< the same for its spectrum
  bool past_caches = false;          ///< how the spectrum is stored; its parts are aligned vectors
};

/// Applied to each value of an image on output: times `scale`, + the lane's bias, + the present value in the
/// leading rows and columns that say so, then a ReLU.
struct Epilogue {
  float scale = 1.0f;
  const float* biases = nullptr;  ///< [lanes]; null: none
  bool relu = false;
  int added_rows = 0;
  int added_columns = 0;
};

/// The functions for one length, vector set and precision of images; each transforms one image per lane.
/// Forward and inverse together multiply an image by 2N², or by 1 with Winograd's filtering.
struct Transforms {
  void (*forward)(const TransformPlace& place, const std::byte* image, float* spectrum) = nullptr;
  void (*inverse)(const TransformPlace& place, const float* spectrum, const Epilogue& epilogue,
                  std::byte* image) = nullptr;
};

/// `length` is one of kLengths, `precision` fp32 or bf16.
Transforms transforms_for(int length, VectorSet set, engine::Precision precision);

/// What a tile of Winograd's filtering transforms (winograd.hpp); `reach` has no inverse.
enum class WinogradPart : std::uint8_t { reach, tile, taps };
Transforms winograd_transforms(WinogradPart part, VectorSet set, engine::Precision precision);

/// Additions and multiplications of the transform of one image.
struct TransformFlops {
  double forward = 0.0;
  double inverse = 0.0;
};

TransformFlops transform_flops(int length, const Placement& at);
TransformFlops winograd_flops(WinogradPart part, const Placement& at);

}  // namespace cifar_mpi::cpu::fft
