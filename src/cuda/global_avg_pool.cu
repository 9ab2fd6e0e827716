#include "cuda/column_tile.cuh"
#include "cuda/global_avg_pool.hpp"

namespace cifar_mpi::cuda {
namespace {

/// Block (image, tile of channels).
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    forward(GlobalAvgPoolShape shape, const T* __restrict__ x, T* __restrict__ y) {
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

/// Likewise.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    backward(GlobalAvgPoolShape shape, const T* __restrict__ grad_y, T* __restrict__ grad_x) {
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

void global_avg_pool_forward(cudaStream_t stream, const GlobalAvgPoolShape& shape, const void* x, void* y) {
  with_grid(shape, [&]<class T>(T, auto width, const Grid& grid) {
    launch("global pooling", stream, grid, forward<T, width>, shape, x, y);
  });
}

void global_avg_pool_backward(cudaStream_t stream, const GlobalAvgPoolShape& shape, const void* grad_y,
                              void* grad_x) {
  with_grid(shape, [&]<class T>(T, auto width, const Grid& grid) {
    launch("global pooling backward", stream, grid, backward<T, width>, shape, grad_y, grad_x);
  });
}

}  // namespace cifar_mpi::cuda
