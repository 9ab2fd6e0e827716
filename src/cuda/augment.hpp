#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cifar_mpi/data/augment.hpp"
#include "cifar_mpi/data/sample_order.hpp"
#include "cuda/value_type.hpp"

/// Turns resident uint8 images into the input of a network: crop, flip, brightness, contrast and standardization in two
/// passes, the second with downsampling. Both enqueue and return.
namespace cifar_mpi::cuda {

/// The label of padding; the loss ignores it.
constexpr std::uint8_t kPaddingLabel = 255;

struct InputPlace {
  data::AugmentSpec spec;
  const std::uint8_t* images = nullptr;  ///< [count, height, width, channels]
  const std::uint8_t* labels = nullptr;  ///< [count]
  std::uint64_t count = 0;
  int batch = 0;
  ValueType type = ValueType::fp32;
  void* x = nullptr;                     ///< [batch, output height, width, channels]
  std::uint8_t* batch_labels = nullptr;  ///< [batch]
};

/// Sample i is order.at(*step, first + i), distorted as draw_augment says.
struct TrainInput {
  InputPlace place;
  data::SampleOrder order;
  std::uint64_t seed = 0;
  std::uint64_t first = 0;
  const std::uint64_t* step = nullptr;
};
void train_input(cudaStream_t stream, const TrainInput& input);

/// Samples [*cursor, *cursor + batch), then the cursor advances. After the end images are zeros with label
/// kPaddingLabel.
void evaluate_input(cudaStream_t stream, const InputPlace& place, std::uint64_t* cursor);

}  // namespace cifar_mpi::cuda
