#pragma once

#include <cuda_runtime_api.h>

#include "cifar_mpi/optim/step_math.hpp"
#include "cuda/optimizer_math.hpp"

namespace cifar_mpi::cuda {

/// Blocks of the update, so partial sums of the decay term; a constant, because it affects bits.
constexpr int kUpdateBlocks = 512;

/// For every float of the segments, with the weight decay λ of its parameter:
///   w' = w − lr·(g + λ·w), ema' = ema + (1 − d)·(w' − ema)
/// and decay_sum (+)= Σ λ·½w² of the values before the update. Nothing but the sum is written when loss_sum
/// is not finite. Segments lie one behind another and begin and end on multiples of 4 floats. Moves 20 bytes
/// per parameter.
struct Update {
  float* params = nullptr;
  const float* grads = nullptr;
  float* ema = nullptr;
  const float* loss_sum = nullptr;
  const std::uint64_t* step = nullptr;
  double* decay_sum = nullptr;
  bool adds = false;  ///< to decay_sum, instead of overwriting it
  optim::RateRule rule;
  double ema_decay = 0.0;
  Segments segments;
  double* partials = nullptr;   ///< kUpdateBlocks
  unsigned* counter = nullptr;  ///< zero before and after
};
void update(cudaStream_t stream, const Update& work);

}  // namespace cifar_mpi::cuda
