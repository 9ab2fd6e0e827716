#include "cuda/batch_norm.hpp"
#include "cuda/column_tile.cuh"

namespace cifar_mpi::cuda {
namespace {

__device__ float rstd_from(float variance, float epsilon) {
  return rstd_of(variance, epsilon, [](float x) { return sqrtf(x); });
}

/// Inputs of all blocks of a kernel.
struct Layer {
  std::int64_t rows;
  int channels;
  bool relu;
  float epsilon;
  const float* scale;
  const float* biases;
  const float* mean;    ///< [channels]
  const float* spread;  ///< [channels]: rstd, or the variance where it is given
  bool given;
  ColumnChunks chunks;

  __device__ std::int64_t begin() const { return chunks.begin(static_cast<int>(blockIdx.y)); }
  __device__ std::int64_t end() const { return chunks.begin(static_cast<int>(blockIdx.y) + 1); }
  __device__ float rstd(int channel) const {
    return given ? rstd_from(spread[channel], epsilon) : spread[channel];
  }
  __device__ ChannelMap map(int channel) const {
    const float factor = scale != nullptr ? scale[channel] : 1.0f;
    return {mean[channel], factor * rstd(channel), biases[channel]};
  }
};

/// Where the sums of chunks are merged: [chunks, 2, channels] and a counter per tile.
struct Meeting {
  float* partials;
  unsigned* counters;

  __device__ float* place(int chunk, int which, int channels, int channel) const {
    return partials + (std::int64_t{chunk} * 2 + which) * channels + channel;
  }
};

struct BatchMoments {
  float* moments;  ///< [2, channels]
  float* mean;     ///< [channels], times share
  float* variance;
  float share;

  __device__ void store(const Layer& layer, int channel, const Moments& all) const {
    moments[channel] = all.mean;
    moments[layer.channels + channel] = rstd_from(all.variance(), layer.epsilon);
    mean[channel] = share * all.mean;
    variance[channel] = share * all.variance();
  }
};

/// Writes the terms of this rank to the sums over all ranks, in which each batch counts once.
struct RankTerms {
  const float* around;  ///< [channels]
  float* sums;          ///< [2, channels]

  __device__ void store(const Layer& layer, int channel, const Moments& batch) const {
    const MomentSums mine = seen_from(around[channel], {1.0f, batch.mean, batch.variance()});
    sums[channel] = mine.sum;
    sums[layer.channels + channel] = mine.squares;
  }
};

/// Merges the chunks' moments of each channel; called by the threads of a tile's last block.
template <int kWidth, class To>
__device__ void merge_moments(const Layer& layer, const Meeting& meeting, int column, const To& to) {
  const bool inside = column < layer.channels;
  float around[kWidth] = {}, sums[2 * kWidth] = {};
  for (int i = 0; inside && i < kWidth; ++i)
    around[i] = __ldcg(meeting.place(0, 0, layer.channels, column + i));
#pragma unroll 1
  for (int chunk = static_cast<int>(threadIdx.y); inside && chunk < layer.chunks.chunks;
       chunk += static_cast<int>(blockDim.y)) {
    const auto count = static_cast<float>(layer.chunks.begin(chunk + 1) - layer.chunks.begin(chunk));
    for (int i = 0; i < kWidth; ++i) {
      const Moments part{count, __ldcg(meeting.place(chunk, 0, layer.channels, column + i)),
                         __ldcg(meeting.place(chunk, 1, layer.channels, column + i))};
      const MomentSums seen = seen_from(around[i], part);
      sums[i] += seen.sum;
      sums[kWidth + i] += seen.squares;
    }
  }
  add_over_rows(sums);
  if (!inside || threadIdx.y != 0) return;
  for (int i = 0; i < kWidth; ++i) {
    to.store(layer, column + i,
             moments_of(static_cast<float>(layer.rows), around[i], {sums[i], sums[kWidth + i]}));
  }
}

/// Block (tile, chunk). Reads x once.
template <class T, int kWidth, class To>
__global__ void __launch_bounds__(kThreads)
    moments(Layer layer, const T* __restrict__ x, Meeting meeting, To to) {
  const int column = tile_column<kWidth>(blockIdx.x), chunk = static_cast<int>(blockIdx.y);
  const bool inside = column < layer.channels;
  float around[kWidth] = {}, sums[2 * kWidth] = {};
  if (inside) {
    const T* const first = x + layer.begin() * layer.channels + column;
    for (int i = 0; i < kWidth; ++i) around[i] = to_float(first[i]);
    visit_rows<kWidth>(
        {x}, layer.begin(), layer.end(), layer.channels, column,
        [&](std::int64_t, const Slice<T, kWidth>(&slices)[1]) {
          for (int i = 0; i < kWidth; ++i) {
            const MomentSums seen = seen_from(around[i], {1.0f, to_float(slices[0].values[i]), 0.0f});
            sums[i] += seen.sum;
            sums[kWidth + i] += seen.squares;
          }
        });
  }
  add_over_rows(sums);
  if (inside && threadIdx.y == 0) {
    const auto count = static_cast<float>(layer.end() - layer.begin());
    for (int i = 0; i < kWidth; ++i) {
      const Moments part = moments_of(count, around[i], {sums[i], sums[kWidth + i]});
      *meeting.place(chunk, 0, layer.channels, column + i) = part.mean;
      *meeting.place(chunk, 1, layer.channels, column + i) = part.squares;
    }
  }
  if (!is_last_block(meeting.counters + blockIdx.x, gridDim.y)) return;
  merge_moments<kWidth>(layer, meeting, column, to);
}

/// Thread per channel: the moments of all ranks' batches from the sums of their terms.
__global__ void moments_of_ranks(Layer layer, RankTerms terms, int ranks, BatchMoments to) {
  const int channel = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (channel >= layer.channels) return;
  to.store(layer, channel,
           moments_of(static_cast<float>(ranks), terms.around[channel],
                      {terms.sums[channel], terms.sums[layer.channels + channel]}));
}

/// Block (tile, chunk). Reads x and writes y.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) apply(Layer layer, const T* __restrict__ x, T* __restrict__ y) {
  const int column = tile_column<kWidth>(blockIdx.x);
  if (column >= layer.channels) return;
  ChannelMap maps[kWidth];
  for (int i = 0; i < kWidth; ++i) maps[i] = layer.map(column + i);
  visit_rows<kWidth>({x}, layer.begin(), layer.end(), layer.channels, column,
                     [&](std::int64_t place, const Slice<T, kWidth>(&slices)[1]) {
                       Slice<T, kWidth> to;
                       for (int i = 0; i < kWidth; ++i) {
                         to.values[i] = from_float<T>(maps[i](to_float(slices[0].values[i]), layer.relu));
                       }
                       *reinterpret_cast<Slice<T, kWidth>*>(y + place) = to;
                     });
}

/// [2, channels]: grad_means of sums over `values` per channel.
struct MeansOfSums {
  float* means;
  float values;

  __device__ void store(const Layer& layer, int channel, const GradSums& all) const {
    const GradSums mean = grad_means(all, values, layer.rstd(channel));
    means[channel] = mean.grad;
    means[layer.channels + channel] = mean.product;
  }
};

/// [2, channels]: the sums themselves.
struct PlainSums {
  float* sums;

  __device__ void store(const Layer& layer, int channel, const GradSums& all) const {
    sums[channel] = all.grad;
    sums[layer.channels + channel] = all.product;
  }
};

template <class To>
struct ParamGrads {
  float* scale;   ///< null: not computed
  float* biases;  ///< null: not computed
  To sums;
};

/// As merge_moments.
template <int kWidth, class To>
__device__ void merge_gradients(const Layer& layer, const Meeting& meeting, int column,
                                const ParamGrads<To>& to) {
  const bool inside = column < layer.channels;
  float sums[2 * kWidth] = {};
#pragma unroll 1
  for (int chunk = static_cast<int>(threadIdx.y); inside && chunk < layer.chunks.chunks;
       chunk += static_cast<int>(blockDim.y)) {
    for (int i = 0; i < 2 * kWidth; ++i) {
      sums[i] += __ldcg(meeting.place(chunk, i / kWidth, layer.channels, column + i % kWidth));
    }
  }
  add_over_rows(sums);
  if (!inside || threadIdx.y != 0) return;
  for (int i = 0; i < kWidth; ++i) {
    const int channel = column + i;
    const GradSums all{sums[i], sums[kWidth + i]};
    if (to.biases != nullptr) to.biases[channel] = all.grad;
    if (to.scale != nullptr) to.scale[channel] = layer.rstd(channel) * all.product;
    to.sums.store(layer, channel, all);
  }
}

/// Block (tile, chunk). Reads x and the gradient of y once.
template <class T, int kWidth, class To>
__global__ void __launch_bounds__(kThreads)
    gradient_sums(Layer layer, const T* __restrict__ x, const T* __restrict__ grad_y, Meeting meeting,
                  ParamGrads<To> to) {
  const int column = tile_column<kWidth>(blockIdx.x);
  const bool inside = column < layer.channels;
  float sums[2 * kWidth] = {};
  if (inside) {
    ChannelMap maps[kWidth];
    for (int i = 0; i < kWidth; ++i) maps[i] = layer.map(column + i);
    visit_rows<kWidth>({x, grad_y}, layer.begin(), layer.end(), layer.channels, column,
                       [&](std::int64_t, const Slice<T, kWidth>(&slices)[2]) {
                         for (int i = 0; i < kWidth; ++i) {
                           const float value = to_float(slices[0].values[i]);
                           const float g = maps[i].masked(value, to_float(slices[1].values[i]), layer.relu);
                           sums[i] += g;
                           sums[kWidth + i] += g * (value - maps[i].mean);
                         }
                       });
  }
  add_over_rows(sums);
  if (inside && threadIdx.y == 0) {
    for (int i = 0; i < 2 * kWidth; ++i) {
      *meeting.place(static_cast<int>(blockIdx.y), i / kWidth, layer.channels, column + i % kWidth) = sums[i];
    }
  }
  if (!is_last_block(meeting.counters + blockIdx.x, gridDim.y)) return;
  merge_gradients<kWidth>(layer, meeting, column, to);
}

/// Thread per channel: the means of all ranks' gradients from their sums.
__global__ void means_of_ranks(Layer layer, const float* sums, MeansOfSums to) {
  const int channel = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (channel >= layer.channels) return;
  to.store(layer, channel, {sums[channel], sums[layer.channels + channel]});
}

/// Block (tile, chunk). Reads x and the gradient of y, writes that of x.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    input_gradient(Layer layer, const T* __restrict__ x, const T* __restrict__ grad_y,
                   const float* __restrict__ means, T* __restrict__ grad_x) {
  const int column = tile_column<kWidth>(blockIdx.x);
  if (column >= layer.channels) return;
  ChannelMap maps[kWidth];
  GradSums of_batch[kWidth];
  for (int i = 0; i < kWidth; ++i) {
    maps[i] = layer.map(column + i);
    of_batch[i] = {means[column + i], means[layer.channels + column + i]};
  }
  visit_rows<kWidth>({x, grad_y}, layer.begin(), layer.end(), layer.channels, column,
                     [&](std::int64_t place, const Slice<T, kWidth>(&slices)[2]) {
                       Slice<T, kWidth> to;
                       for (int i = 0; i < kWidth; ++i) {
                         const float value = to_float(slices[0].values[i]);
                         const float g = maps[i].masked(value, to_float(slices[1].values[i]), layer.relu);
                         to.values[i] = from_float<T>(batch_norm_grad(maps[i], of_batch[i], value, g));
                       }
                       *reinterpret_cast<Slice<T, kWidth>*>(grad_x + place) = to;
                     });
}

Layer layer_of(const BatchNormWork& work) {
  return {work.rows,    work.channels,
          work.relu,    work.epsilon,
          work.scale,   work.biases,
          work.moments, work.moments + work.channels,
          false,        column_chunks(work.rows)};
}

/// Calls `launcher(value, width, grid)` with a value of the activations' type and the width of a slice.
template <class Launcher>
void with_grid(const BatchNormWork& work, Launcher launcher) {
  with_type(work.type, [&]<class T>(T value) {
    with_width(work.channels, [&](auto width) {
      const dim3 blocks(static_cast<unsigned>(column_counters(work.channels)),
                        static_cast<unsigned>(column_chunks(work.rows).chunks));
      launcher(value, width, Grid{blocks, tile_threads(work.channels, width)});
    });
  });
}

void start_apply(cudaStream_t stream, const BatchNormWork& work, const Layer& layer, const void* x, void* y) {
  with_grid(work, [&]<class T>(T, auto width, const Grid& grid) {
    launch("batch norm", stream, grid, apply<T, width>, layer, x, y);
  });
}

template <class To>
void start_moments(cudaStream_t stream, const BatchNormWork& work, const Layer& layer, const void* x,
                   const To& to) {
  with_grid(work, [&]<class T>(T, auto width, const Grid& grid) {
    launch("batch norm moments", stream, grid, moments<T, width, To>, layer, x,
           Meeting{work.partials, work.counters}, to);
  });
}

template <class To>
void start_gradient_sums(cudaStream_t stream, const BatchNormWork& work, const Layer& layer, const void* x,
                         const void* grad_y, const ParamGrads<To>& to) {
  with_grid(work, [&]<class T>(T, auto width, const Grid& grid) {
    launch("batch norm gradient sums", stream, grid, gradient_sums<T, width, To>, layer, x, grad_y,
           Meeting{work.partials, work.counters}, to);
  });
}

void start_input_gradient(cudaStream_t stream, const BatchNormWork& work, const Layer& layer, const void* x,
                          const void* grad_y, const float* means, void* grad_x) {
  with_grid(work, [&]<class T>(T, auto width, const Grid& grid) {
    launch("batch norm gradient", stream, grid, input_gradient<T, width>, layer, x, grad_y, means, grad_x);
  });
}

/// Space for [2, channels] after the chunks' sums.
float* means_of(const BatchNormWork& work) {
  return work.partials + 2 * std::int64_t{column_chunks(work.rows).chunks} * work.channels;
}

}  // namespace

void batch_norm_forward(cudaStream_t stream, const BatchNormWork& work, const void* x, void* y, float* mean,
                        float* variance, float share) {
  const Layer layer = layer_of(work);
  start_moments(stream, work, layer, x, BatchMoments{work.moments, mean, variance, share});
  start_apply(stream, work, layer, x, y);
}

void batch_norm_rank_moments(cudaStream_t stream, const BatchNormWork& work, const void* x,
                             const float* around, float* sums) {
  start_moments(stream, work, layer_of(work), x, RankTerms{around, sums});
}

void batch_norm_forward_of_ranks(cudaStream_t stream, const BatchNormWork& work, const BatchNormSums& sums,
                                 const void* x, void* y, float* mean, float* variance, float share) {
  const Layer layer = layer_of(work);
  launch("batch norm moments of all ranks", stream, grid_for(work.channels), moments_of_ranks, layer,
         RankTerms{sums.around, sums.memory}, sums.ranks, BatchMoments{work.moments, mean, variance, share});
  start_apply(stream, work, layer, x, y);
}

void batch_norm_inference(cudaStream_t stream, const BatchNormWork& work, const void* x, void* y,
                          const float* mean, const float* variance) {
  Layer layer = layer_of(work);
  layer.mean = mean;
  layer.spread = variance;
  layer.given = true;
  start_apply(stream, work, layer, x, y);
}

void batch_norm_backward(cudaStream_t stream, const BatchNormWork& work, const void* x, const void* grad_y,
                         float* grad_scale, float* grad_biases, void* grad_x) {
  const Layer layer = layer_of(work);
  float* const means = means_of(work);
  const MeansOfSums to{means, static_cast<float>(work.rows)};
  start_gradient_sums(stream, work, layer, x, grad_y, ParamGrads<MeansOfSums>{grad_scale, grad_biases, to});
  if (grad_x != nullptr) start_input_gradient(stream, work, layer, x, grad_y, means, grad_x);
}

void batch_norm_gradient_sums(cudaStream_t stream, const BatchNormWork& work, const void* x,
                              const void* grad_y, float* grad_scale, float* grad_biases, float* sums) {
  start_gradient_sums(stream, work, layer_of(work), x, grad_y,
                      ParamGrads<PlainSums>{grad_scale, grad_biases, {sums}});
}

void batch_norm_backward_of_ranks(cudaStream_t stream, const BatchNormWork& work, const BatchNormSums& sums,
                                  const void* x, const void* grad_y, void* grad_x) {
  const Layer layer = layer_of(work);
  float* const means = means_of(work);
  const float values = static_cast<float>(work.rows) * static_cast<float>(sums.ranks);
  launch("batch norm gradients of all ranks", stream, grid_for(work.channels), means_of_ranks, layer,
         sums.memory, MeansOfSums{means, values});
  start_input_gradient(stream, work, layer, x, grad_y, means, grad_x);
}

}  // namespace cifar_mpi::cuda
