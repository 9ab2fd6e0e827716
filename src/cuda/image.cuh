#pragma once

#include <cstdint>

#include "cuda/launch.cuh"

namespace cifar_mpi::cuda {

/// Which image, row, column and channel an element of an NHWC tensor is.
struct Position {
  std::int64_t image = 0;
  int y = 0;
  int x = 0;
  int channel = 0;
};

__device__ inline Position position_of(std::int64_t i, int height, int width, int channels) {
  const std::int64_t pixel = i / channels;
  const std::int64_t row = pixel / width;
  Position at;
  at.channel = static_cast<int>(i - pixel * channels);
  at.x = static_cast<int>(pixel - row * width);
  at.image = row / height;
  at.y = static_cast<int>(row - at.image * height);
  return at;
}

}  // namespace cifar_mpi::cuda
