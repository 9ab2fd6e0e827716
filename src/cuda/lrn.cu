#include "cuda/launch.cuh"
#include "cuda/lrn_pool.hpp"

namespace cifar_mpi::cuda {
namespace {

/// Values per block of the backward pass: whole pixels, at least one.
constexpr int kBlockValues = 1024;

/// One thread per value; its neighbours come from the L1 cache.
template <class T>
__global__ void forward(LrnShape shape, Activation activation, const T* __restrict__ x, T* __restrict__ y) {
  const std::int64_t i = thread_index();
  if (i >= shape.pixels * shape.channels) return;
  const int channel = static_cast<int>(i % shape.channels);
  const T* const pixel = x + (i - channel);
  const auto read = [&](int c) { return activated<T>(activation, to_float(pixel[c]), c); };
  const float base = lrn_base(shape.rule, shape.channels, channel, read);
  y[i] = from_float<T>(read(channel) * lrn_scale(shape.rule, base, FastMath{}));
}

/// One block takes some pixels: it stores each value's two terms in shared memory, then each value gathers
/// its neighbours'.
template <class T>
__global__ void backward(LrnShape shape, int pixels_per_block, Activation activation, const T* __restrict__ x,
                         const T* __restrict__ grad_y, T* __restrict__ grad_x) {
  float* const memory = dynamic_shared<float>();
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * pixels_per_block * shape.channels;
  const std::int64_t left = shape.pixels * shape.channels - first;
  const int most = pixels_per_block * shape.channels;
  const int count = left < most ? static_cast<int>(left) : most;
  float* const shares = memory;
  float* const directs = memory + most;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const int channel = i % shape.channels;
    const T* const pixel = x + first + (i - channel);
    const LrnTerms terms = lrn_terms(
        shape.rule, shape.channels, channel, to_float(grad_y[first + i]),
        [&](int c) { return activated<T>(activation, to_float(pixel[c]), c); }, FastMath{});
    directs[i] = terms.direct;
    shares[i] = terms.share;
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const int channel = i % shape.channels;
    const float value = activated<T>(activation, to_float(x[first + i]), channel);
    const float* const pixel = shares + (i - channel);
    const float grad =
        lrn_gradient(shape.rule, shape.channels, channel, value, directs[i], [&](int c) { return pixel[c]; });
    grad_x[first + i] = from_float<T>(activation.relu && !(value > 0.0f) ? 0.0f : grad);
  }
}

}  // namespace

void lrn_forward(cudaStream_t stream, const LrnShape& shape, const Activation& activation, const void* x,
                 void* y) {
  const Grid grid = grid_for(shape.pixels * shape.channels);
  with_type(shape.type,
            [&]<class T>(T) { launch("normalization", stream, grid, forward<T>, shape, activation, x, y); });
}

void lrn_backward(cudaStream_t stream, const LrnShape& shape, const Activation& activation, const void* x,
                  const void* grad_y, void* grad_x) {
  const int pixels = shape.channels >= kBlockValues ? 1 : kBlockValues / shape.channels;
  const auto blocks = static_cast<unsigned>((shape.pixels + pixels - 1) / pixels);
  const std::size_t shared =
      2 * sizeof(float) * static_cast<std::size_t>(pixels) * static_cast<std::size_t>(shape.channels);
  with_type(shape.type, [&]<class T>(T) {
    launch("normalization backward", stream, {blocks, kThreads, shared}, backward<T>, shape, pixels,
           activation, x, grad_y, grad_x);
  });
}

}  // namespace cifar_mpi::cuda
