#pragma once

#include <cuda_runtime_api.h>

#include "cifar_mpi/optim/lookahead.hpp"
#include "cifar_mpi/optim/state.hpp"
#include "cifar_mpi/optim/step_math.hpp"
#include "cuda/optimizer_math.hpp"

namespace cifar_mpi::cuda {

/// The most blocks of the update, and so partial sums of the decay term; a constant, because it affects bits.
constexpr int kUpdateBlocks = 512;

/// For every float of the segments, with the weight decay λ of its parameter: w' by the optimizer's rule in
/// optim/step_math.hpp, for sgd w − lr·(g + λ·w); ema' = ema + (1 − d)·(w' − ema); and decay_sum (+)= Σ λ·½w²
/// of the values before the update, 0 if λ is not part of the loss. With a norm, g is first multiplied by
/// optim::clip_factor. If loss_sum or the norm is not finite, only the sum is written, except in a local step
/// (engine::UpdateBinding).
///
/// Segments are contiguous and begin and end on multiples of 4 floats. Moves 20 bytes per parameter, and 8
/// for each array of the optimizer.
struct Update {
  float* params = nullptr;
  const float* grads = nullptr;
  float* ema = nullptr;
  const float* loss_sum = nullptr;
  const std::uint64_t* step = nullptr;
  double* decay_sum = nullptr;
  bool adds = false;  ///< to decay_sum, instead of overwriting it
  optim::RateRule rule;
  optim::AverageRule average;
  Segments segments;
  double* partials = nullptr;   ///< kUpdateBlocks
  unsigned* counter = nullptr;  ///< zero before and after
  optim::OptimizerSpec optimizer;
  float* states[optim::kMostOptimizerRows] = {};
  double clip_norm = 0.0;
  const double* gradient_norm = nullptr;  ///< null: nothing is clipped
  int average_steps = 1;
  bool decays_by_loss = true;  ///< false: no decay sum, as for the moves of hidden matrices
};
void update(cudaStream_t stream, const Update& work);

/// One hidden matrix with muon (engine::Backend::matrix_tasks). Pointers to blocks are to the matrix's span.
struct MatrixMove {
  float* params = nullptr;
  const float* grads = nullptr;
  float* momenta = nullptr;
  float* moves = nullptr;
  const std::uint32_t* places = nullptr;  ///< of the `values` elements in a span
  std::int64_t values = 0;                ///< rest · out
  std::int64_t floats = 0;                ///< of the span, a multiple of 4
  std::int64_t out = 0;
  float scale = 1.0f;  ///< optim::matrix_scale
  const float* loss_sum = nullptr;
  const std::uint64_t* step = nullptr;
  optim::OptimizerSpec optimizer;
  double clip_norm = 0.0;
  const double* gradient_norm = nullptr;  ///< null: nothing is clipped
  int average_steps = 1;
  double* sum = nullptr;        ///< [1]: of the squares of the direction, or of the weights
  double* partials = nullptr;   ///< kUpdateBlocks
  unsigned* counter = nullptr;  ///< zero before and after
};
/// x [values] = direction / (‖direction‖ + eps), and the momenta of the step. Two launches, both limited by memory;
/// squares are summed in double in an order that depends only on `values`.
void gather_matrix(cudaStream_t stream, const MatrixMove& work, float* x);
/// aa = kA·I + kB·a + kC·aa, all [n, n].
void muon_polynomial(cudaStream_t stream, std::int64_t n, const float* a, float* aa);
/// moves = scale · x + 0, element by element at its place.
void scatter_matrix(cudaStream_t stream, const MatrixMove& work, const float* x);
/// weights = weights · √out/‖weights‖ in the steps of optim::normalizes. Two launches.
void normalize_matrix(cudaStream_t stream, const MatrixMove& work);

/// norm = √Σ grads², summed in double in an order that depends only on `floats`, a multiple of 4.
struct GradientNorm {
  const float* grads = nullptr;
  std::uint64_t floats = 0;
  double* norm = nullptr;
  double* partials = nullptr;   ///< kUpdateBlocks
  unsigned* counter = nullptr;  ///< zero before and after
};
void gradient_norm(cudaStream_t stream, const GradientNorm& work);

/// For every float of the segments, running statistics, with the share s of its parameter (Segment::rate_factor):
///   r' = r + s·(batch − r), ema' = ema + (1 − d)·(r' − ema)
/// Nothing is written when loss_sum or the norm is not finite. A few thousand floats: the limit is the launch.
struct Running {
  float* params = nullptr;
  float* ema = nullptr;
  const float* loss_sum = nullptr;
  const float* statistics = nullptr;  ///< of the batch, for floats from `begin` on
  std::uint64_t begin = 0;
  const std::uint64_t* step = nullptr;
  optim::AverageRule average;
  Segments segments;
  const double* gradient_norm = nullptr;  ///< null: none
  int average_steps = 1;
};
void update_running(cudaStream_t stream, const Running& work);

/// optim::apply of the pull of this step, if it has one, for every float. Nothing is written when loss_sum or the norm is not
/// finite. Moves 24 bytes per float in the steps that pull; in the others the limit is the launch.
struct LookaheadPull {
  float* params = nullptr;
  float* slow = nullptr;
  float* ema = nullptr;
  std::uint64_t floats = 0;
  optim::Lookahead rule;
  optim::AverageRule average;
  const float* loss_sum = nullptr;
  const std::uint64_t* step = nullptr;
  const double* gradient_norm = nullptr;  ///< null: none
};
void pull(cudaStream_t stream, const LookaheadPull& work);

}  // namespace cifar_mpi::cuda
