#include "cuda/image.cuh"
#include "cuda/launch.cuh"
#include "cuda/pool.hpp"

namespace cifar_mpi::cuda {
namespace {

/// One thread per output. Reads each input about (kernel / stride)² times, from the cache.
template <class T>
__global__ void forward(PoolPlace place, Activation activation, const T* __restrict__ x, T* __restrict__ y,
                        std::uint8_t* __restrict__ argmax) {
  const std::int64_t i = thread_index();
  if (i >= place.out_values()) return;
  const Position at = position_of(i, place.out_height, place.out_width, place.channels);
  const T* const image = x + at.image * place.in_height * place.in_width * place.channels + at.channel;
  PoolChoice choice = pool_choose(place, at.y, at.x, [&](int row, int column) {
    return to_float(image[(static_cast<std::int64_t>(row) * place.in_width + column) * place.channels]);
  });
  if (activation.relu) {
    choice = through_relu(choice, activated<T>(activation, choice.value, static_cast<int>(at.channel)));
  }
  y[i] = from_float<T>(choice.value);
  if (argmax != nullptr) argmax[i] = choice.tap;
}

/// One thread per input; reads the argmax and gradients of the windows that hold it.
template <class T>
__global__ void backward(PoolPlace place, const std::uint8_t* __restrict__ argmax,
                         const T* __restrict__ grad_y, T* __restrict__ grad_x) {
  const std::int64_t i = thread_index();
  if (i >= place.in_values()) return;
  const Position at = position_of(i, place.in_height, place.in_width, place.channels);
  const std::int64_t base = at.image * place.out_height * place.out_width * place.channels + at.channel;
  const auto output = [&](int row, int column) {
    return base + (static_cast<std::int64_t>(row) * place.out_width + column) * place.channels;
  };
  grad_x[i] = from_float<T>(pool_gather(
      place, at.y, at.x, [&](int row, int column) { return static_cast<int>(argmax[output(row, column)]); },
      [&](int row, int column) { return to_float(grad_y[output(row, column)]); }));
}

}  // namespace

void pool_forward(cudaStream_t stream, const PoolPlace& place, ValueType type, const Activation& activation,
                  const void* x, void* y, std::uint8_t* argmax) {
  const Grid grid = grid_for(place.out_values());
  with_type(type, [&]<class T>(T) {
    launch("pooling", stream, grid, forward<T>, place, activation, x, y, argmax);
  });
}

void pool_backward(cudaStream_t stream, const PoolPlace& place, ValueType type, const std::uint8_t* argmax,
                   const void* grad_y, void* grad_x) {
  const Grid grid = grid_for(place.in_values());
  with_type(type, [&]<class T>(T) {
    launch("pooling backward", stream, grid, backward<T>, place, argmax, grad_y, grad_x);
  });
}

}  // namespace cifar_mpi::cuda
