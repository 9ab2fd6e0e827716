#include "cuda/image.cuh"
#include "cuda/launch.cuh"
#include "cuda/norm_pool.hpp"

namespace cifar_mpi::cuda {
namespace {

/// Values that a block takes where it takes whole pixels.
constexpr int kBlockValues = 1024;

int pixels_of_block(int channels) { return channels >= kBlockValues ? 1 : kBlockValues / channels; }

template <class T>
__device__ float through_memory(float value) {
  return to_float(from_float<T>(value));
}

/// A block takes some pixels of the output. Reads each input about (kernel / stride)² times, from the cache,
/// and writes the pooled and the normalized value once each.
template <class T>
__global__ void forward_pool_norm(NormPoolShape shape, int pixels_per_block, const T* __restrict__ x,
                                  T* __restrict__ pooled, std::uint8_t* __restrict__ taps,
                                  T* __restrict__ y) {
  float* const values = dynamic_shared<float>();
  const PoolPlace& place = shape.place;
  const int channels = place.channels, most = pixels_per_block * channels;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * most;
  const std::int64_t left = place.out_values() - first;
  const int count = left < most ? static_cast<int>(left) : most;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const Position at = position_of(first + i, place.out_height, place.out_width, channels);
    const T* const image = x + at.image * place.in_height * place.in_width * channels + at.channel;
    const PoolChoice choice = pool_choose(place, at.y, at.x, shape.relu, [&](int row, int column) {
      return to_float(image[(static_cast<std::int64_t>(row) * place.in_width + column) * channels]);
    });
    values[i] = through_memory<T>(choice.value);
    if (pooled != nullptr) pooled[first + i] = from_float<T>(choice.value);
    if (taps != nullptr) taps[first + i] = choice.tap;
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const int channel = i % channels;
    const float* const pixel = values + (i - channel);
    const float base = norm_base(shape.rule, channels, channel, [&](int c) { return pixel[c]; });
    y[first + i] = from_float<T>(values[i] * norm_scale(shape.rule, base, DeviceMath{}));
  }
}

/// One block per piece of an image's rows. The gradients of the pooled values that these rows need are worked
/// out in shared memory, those of the rows between two pieces twice; then each input gathers its windows'.
template <class T>
__global__ void backward_pool_norm(NormPoolShape shape, const T* __restrict__ pooled,
                                   const std::uint8_t* __restrict__ taps, const T* __restrict__ grad_y,
                                   T* __restrict__ grad_x) {
  const PoolPlace& place = shape.place;
  const int channels = place.channels;
  const auto of_image = static_cast<unsigned>(pieces(place.in_height, kInputRows));
  const Rows in = piece(place.in_height, kInputRows, static_cast<int>(blockIdx.x % of_image));
  const Rows out = rows_over(place, in);
  const int row_values = place.out_width * channels, count = out.count() * row_values;
  float* const grads = dynamic_shared<float>();  // at first the direct terms
  float* const shares = grads + pooled_values(place);
  const std::int64_t image = blockIdx.x / of_image;
  const std::int64_t first = (image * place.out_height + out.begin) * row_values;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const int channel = i % channels;
    const T* const pixel = pooled + first + (i - channel);
    const NormTerms terms = norm_terms(
        shape.rule, channels, channel, to_float(grad_y[first + i]), [&](int c) { return to_float(pixel[c]); },
        DeviceMath{});
    grads[i] = terms.direct;
    shares[i] = terms.share;
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const int channel = i % channels;
    const float* const pixel = shares + (i - channel);
    grads[i] = through_memory<T>(norm_gradient(shape.rule, channels, channel, to_float(pooled[first + i]),
                                               grads[i], [&](int c) { return pixel[c]; }));
  }
  __syncthreads();
  const int in_row = place.in_width * channels;
  T* const to = grad_x + (image * place.in_height + in.begin) * in_row;
  for (int i = static_cast<int>(threadIdx.x); i < in.count() * in_row; i += static_cast<int>(blockDim.x)) {
    const int row = i / in_row, channel = i % channels, column = (i - row * in_row) / channels;
    const auto window = [&](int oy, int ox) {
      return (oy - out.begin) * row_values + ox * channels + channel;
    };
    to[i] = from_float<T>(pool_gather(
        place, in.begin + row, column,
        [&](int oy, int ox) { return static_cast<int>(taps[first + window(oy, ox)]); },
        [&](int oy, int ox) { return grads[window(oy, ox)]; }));
  }
}

/// One block per piece of an image's output rows. Normalizes the rows under its windows in shared memory,
/// those between two pieces twice, then pools them.
template <class T>
__global__ void forward_norm_pool(NormPoolShape shape, const T* __restrict__ x,
                                  std::uint8_t* __restrict__ taps, T* __restrict__ y) {
  const PoolPlace& place = shape.place;
  const int channels = place.channels;
  const auto of_image = static_cast<unsigned>(pieces(place.out_height, kPooledRows));
  const Rows out = piece(place.out_height, kPooledRows, static_cast<int>(blockIdx.x % of_image));
  const Rows in = rows_under(place, out);
  const int in_row = place.in_width * channels;
  float* const values = dynamic_shared<float>();
  const std::int64_t image = blockIdx.x / of_image;
  const T* const from = x + (image * place.in_height + in.begin) * in_row;
  for (int i = static_cast<int>(threadIdx.x); i < in.count() * in_row; i += static_cast<int>(blockDim.x)) {
    const int channel = i % channels;
    const T* const pixel = from + (i - channel);
    const float base = norm_base(shape.rule, channels, channel, [&](int c) { return to_float(pixel[c]); });
    values[i] = through_memory<T>(to_float(from[i]) * norm_scale(shape.rule, base, DeviceMath{}));
  }
  __syncthreads();
  const int out_row = place.out_width * channels;
  const std::int64_t first = (image * place.out_height + out.begin) * out_row;
  for (int i = static_cast<int>(threadIdx.x); i < out.count() * out_row; i += static_cast<int>(blockDim.x)) {
    const int row = i / out_row, channel = i % channels, column = (i - row * out_row) / channels;
    const PoolChoice choice = pool_choose(place, out.begin + row, column, false, [&](int iy, int ix) {
      return values[(iy - in.begin) * in_row + ix * channels + channel];
    });
    y[first + i] = from_float<T>(choice.value);
    if (taps != nullptr) taps[first + i] = choice.tap;
  }
}

/// A block takes some pixels of the input: gathers each value's gradient from the windows that hold it, then
/// does what the backward pass of a normalization does.
template <class T>
__global__ void backward_norm_pool(NormPoolShape shape, int pixels_per_block, const T* __restrict__ x,
                                   const std::uint8_t* __restrict__ taps, const T* __restrict__ grad_y,
                                   T* __restrict__ grad_x) {
  const PoolPlace& place = shape.place;
  const int channels = place.channels, most = pixels_per_block * channels;
  float* const directs = dynamic_shared<float>();
  float* const shares = directs + most;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * most;
  const std::int64_t left = place.in_values() - first;
  const int count = left < most ? static_cast<int>(left) : most;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const Position at = position_of(first + i, place.in_height, place.in_width, channels);
    const std::int64_t windows = at.image * place.out_height * place.out_width * channels + at.channel;
    const auto window = [&](int oy, int ox) {
      return windows + (static_cast<std::int64_t>(oy) * place.out_width + ox) * channels;
    };
    const float grad = pool_gather(
        place, at.y, at.x, [&](int oy, int ox) { return static_cast<int>(taps[window(oy, ox)]); },
        [&](int oy, int ox) { return to_float(grad_y[window(oy, ox)]); });
    const T* const pixel = x + first + (i - at.channel);
    const NormTerms terms = norm_terms(
        shape.rule, channels, at.channel, through_memory<T>(grad), [&](int c) { return to_float(pixel[c]); },
        DeviceMath{});
    directs[i] = terms.direct;
    shares[i] = terms.share;
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const int channel = i % channels;
    const float value = to_float(x[first + i]);
    const float* const pixel = shares + (i - channel);
    const float grad =
        norm_gradient(shape.rule, channels, channel, value, directs[i], [&](int c) { return pixel[c]; });
    grad_x[first + i] = from_float<T>(shape.relu && !(value > 0.0f) ? 0.0f : grad);
  }
}

/// Blocks of whole pixels.
Grid pixel_grid(std::int64_t values, int channels, std::size_t shared_floats) {
  const std::int64_t most = std::int64_t{pixels_of_block(channels)} * channels;
  return {static_cast<unsigned>((values + most - 1) / most), kThreads,
          shared_floats * sizeof(float) * static_cast<std::size_t>(most)};
}

/// Blocks of rows of an image.
Grid row_grid(int pieces_of_image, int images, std::size_t shared_floats) {
  return {static_cast<unsigned>(pieces_of_image) * static_cast<unsigned>(images), kThreads,
          shared_floats * sizeof(float)};
}

}  // namespace

void pool_norm_forward(cudaStream_t stream, const NormPoolShape& shape, const void* x, void* pooled,
                       std::uint8_t* taps, void* y) {
  const int channels = shape.place.channels;
  const Grid grid = pixel_grid(shape.place.out_values(), channels, 1);
  with_type(shape.type, [&]<class T>(T) {
    launch("pooling and normalization", stream, grid, forward_pool_norm<T>, shape, pixels_of_block(channels),
           x, pooled, taps, y);
  });
}

void pool_norm_backward(cudaStream_t stream, const NormPoolShape& shape, const void* pooled,
                        const std::uint8_t* taps, const void* grad_y, void* grad_x) {
  const PoolPlace& place = shape.place;
  const Grid grid = row_grid(pieces(place.in_height, kInputRows), place.batch, 2 * pooled_values(place));
  with_type(shape.type, [&]<class T>(T) {
    launch("pooling and normalization backward", stream, grid, backward_pool_norm<T>, shape, pooled, taps,
           grad_y, grad_x);
  });
}

void norm_pool_forward(cudaStream_t stream, const NormPoolShape& shape, const void* x, std::uint8_t* taps,
                       void* y) {
  const PoolPlace& place = shape.place;
  const Grid grid = row_grid(pieces(place.out_height, kPooledRows), place.batch, normalized_values(place));
  with_type(shape.type, [&]<class T>(T) {
    launch("normalization and pooling", stream, grid, forward_norm_pool<T>, shape, x, taps, y);
  });
}

void norm_pool_backward(cudaStream_t stream, const NormPoolShape& shape, const void* x,
                        const std::uint8_t* taps, const void* grad_y, void* grad_x) {
  const int channels = shape.place.channels;
  const Grid grid = pixel_grid(shape.place.in_values(), channels, 2);
  with_type(shape.type, [&]<class T>(T) {
    launch("normalization and pooling backward", stream, grid, backward_norm_pool<T>, shape,
           pixels_of_block(channels), x, taps, grad_y, grad_x);
  });
}

}  // namespace cifar_mpi::cuda
