#include "cuda/column_tile.cuh"
#include "cuda/launch.cuh"
#include "cuda/pool.hpp"

namespace cifar_mpi::cuda {
namespace {

/// The image, row, column and channel of an element of an NHWC tensor.
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

/// One thread per input; reads the argmax and the gradient of each window that contains it.
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

/// The mean of each channel. Block (image, tile of channels).
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    mean(GlobalAvgPoolShape shape, const T* __restrict__ x, T* __restrict__ y) {
  const int column = tile_column<kWidth>(blockIdx.y);
  const bool inside = column < shape.channels;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * shape.pixels;
  float sums[kWidth] = {};
  if (inside) {
    visit_rows<kWidth>({x}, begin, begin + shape.pixels, shape.channels, column,
                       [&](std::int64_t, const Slice<T, kWidth>(&slices)[1]) {
                         for (int i = 0; i < kWidth; ++i) sums[i] += to_float(slices[0].values[i]);
                       });
  }
  add_over_rows(sums);
  if (!inside || threadIdx.y != 0) return;
  for (int i = 0; i < kWidth; ++i) {
    y[static_cast<std::int64_t>(blockIdx.x) * shape.channels + column + i] =
        from_float<T>(sums[i] / static_cast<float>(shape.pixels));
  }
}

/// Gives each pixel its share of the gradient of the mean. Block (image, tile of channels).
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    spread_mean(GlobalAvgPoolShape shape, const T* __restrict__ grad_y, T* __restrict__ grad_x) {
  using Values = Slice<T, kWidth>;
  const int column = tile_column<kWidth>(blockIdx.y);
  if (column >= shape.channels) return;
  const auto image = static_cast<std::int64_t>(blockIdx.x);
  const Values grads = *reinterpret_cast<const Values*>(grad_y + image * shape.channels + column);
  Values shares;
  for (int i = 0; i < kWidth; ++i) {
    shares.values[i] = from_float<T>(to_float(grads.values[i]) / static_cast<float>(shape.pixels));
  }
  for (int p = static_cast<int>(threadIdx.y); p < shape.pixels; p += static_cast<int>(blockDim.y)) {
    *reinterpret_cast<Values*>(grad_x + (image * shape.pixels + p) * shape.channels + column) = shares;
  }
}

template <class Launcher>
void with_grid(const GlobalAvgPoolShape& shape, Launcher launcher) {
  with_type(shape.type, [&]<class T>(T value) {
    with_width(shape.channels, [&](auto width) {
      const dim3 blocks(static_cast<unsigned>(shape.batch),
                        static_cast<unsigned>(column_counters(shape.channels)));
      launcher(value, width, Grid{blocks, tile_threads(shape.channels, width)});
    });
  });
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

void global_avg_pool_forward(cudaStream_t stream, const GlobalAvgPoolShape& shape, const void* x, void* y) {
  with_grid(shape, [&]<class T>(T, auto width, const Grid& grid) {
    launch("global pooling", stream, grid, mean<T, width>, shape, x, y);
  });
}

void global_avg_pool_backward(cudaStream_t stream, const GlobalAvgPoolShape& shape, const void* grad_y,
                              void* grad_x) {
  with_grid(shape, [&]<class T>(T, auto width, const Grid& grid) {
    launch("global pooling backward", stream, grid, spread_mean<T, width>, shape, grad_y, grad_x);
  });
}

}  // namespace cifar_mpi::cuda
