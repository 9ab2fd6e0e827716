#pragma once

#include <cstddef>
#include <vector>

#include "cifar_mpi/engine/backend.hpp"
#include "cpu/fft/image_fft.hpp"
#include "cpu/simd.hpp"

/// Between images and their spectra; formulas and the order of the slots stand in image_fft.hpp.
namespace cifar_mpi::cpu::fft {

/// The lengths there are, ascending.
inline constexpr int kLengths[] = {8, 10, 14, 16, 28, 32};

/// How the images that one call transforms, a vector of them, lie in memory; steps are in values on the one side and in floats
/// on the other.
struct TransformPlace {
  Placement at;
  std::ptrdiff_t row_step = 0;
  std::ptrdiff_t column_step = 0;
  std::ptrdiff_t lane_step = 1;  ///< of what is read; lanes are written together
  std::ptrdiff_t slot_step = 0;
  std::ptrdiff_t im_step = 0;        ///< from real to imaginary parts
  std::ptrdiff_t image_next = 0;     ///< to the image of a later call, which is fetched meanwhile
  std::ptrdiff_t spectrum_next = 0;  ///< likewise
};

/// What is done to each value of an image on its way out: times `scale`, + bias of its lane, + what is there already, and then
/// a ReLU.
struct OnTheWay {
  float scale = 1.0f;
  const float* biases = nullptr;  ///< [lanes]; null: none
  bool adds = false;              ///< what is there already
  bool relu = false;
};

/// The functions of one length, vector set and precision of images; each transforms as many images as there are lanes. There
/// and back an image becomes 2N² times itself.
struct Transforms {
  void (*there)(const TransformPlace& place, const std::byte* image, float* spectrum) = nullptr;
  void (*back)(const TransformPlace& place, const float* spectrum, const OnTheWay& way,
               std::byte* image) = nullptr;
};

/// `length` is one of kLengths, `precision` fp32 or bf16.
Transforms transforms_for(int length, VectorSet set, engine::Precision precision);

/// Additions and multiplications of the transform of one image.
struct TransformFlops {
  double there = 0.0;
  double back = 0.0;
};

TransformFlops transform_flops(int length, const Placement& at);

}  // namespace cifar_mpi::cpu::fft
