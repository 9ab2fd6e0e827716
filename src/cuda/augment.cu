#include "cuda/augment.hpp"
#include "cuda/augment_math.hpp"
#include "cuda/launch.cuh"

namespace cifar_mpi::cuda {
namespace {

constexpr int kMostChannels = data::AffineMap::kMaxChannels;

/// Writes one sample by one block. The sums are integers, so the order in which the threads add them does not
/// matter.
template <class T>
__device__ void write_sample(const InputPlace& place, std::uint64_t sample, const data::AugmentDraw& draw,
                             T* out) {
  __shared__ std::uint32_t sums[kMostChannels], squares[kMostChannels];
  __shared__ data::AffineMap map;
  const data::AugmentSpec& spec = place.spec;
  const int channels = spec.source.channels;
  const int pixels = spec.crop_height * spec.crop_width;
  const int values = pixels * channels;
  const std::uint8_t* const image = place.images + sample * static_cast<std::uint64_t>(spec.source.count());
  const int me = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  if (me < kMostChannels) sums[me] = squares[me] = 0;
  __syncthreads();
  for (int c = 0; c < channels; ++c) {
    std::uint32_t sum = 0, square = 0;
    for (int pixel = me; pixel < pixels; pixel += threads) {
      const std::uint32_t v = image[crop_source(spec, draw, pixel * channels + c)];
      sum += v;
      square += v * v;
    }
    atomicAdd(&sums[c], sum);
    atomicAdd(&squares[c], square);
  }
  __syncthreads();
  if (me == 0) {
    map = data::affine_map(sums, squares, channels, pixels, draw.contrast,
                           [](double square) { return sqrt(square); });
  }
  __syncthreads();
  for (int i = me; i < values; i += threads) {
    const float v = image[crop_source(spec, draw, i)];
    out[i] = from_float<T>(map.scale * v + map.shift[i % channels]);
  }
}

/// One block per sample. Reads a crop twice, the second time from the cache, and writes it once.
template <class T>
__global__ void train(TrainInput input) {
  __shared__ data::SampleRef sample;
  __shared__ data::AugmentDraw draw;
  const InputPlace& place = input.place;
  if (threadIdx.x == 0) {
    sample = input.order.at(*input.step, input.first + blockIdx.x);
    draw = data::draw_augment(place.spec, input.seed, sample.pass, sample.id);
    place.batch_labels[blockIdx.x] = place.labels[sample.local];
  }
  __syncthreads();
  write_sample(
      place, sample.local, draw,
      static_cast<T*>(place.x) + static_cast<std::int64_t>(blockIdx.x) * place.spec.output().count());
}

template <class T>
__global__ void evaluate(InputPlace place, const std::uint64_t* __restrict__ cursor) {
  const std::uint64_t sample = *cursor + blockIdx.x;
  const int values = place.spec.output().count();
  T* const out = static_cast<T*>(place.x) + static_cast<std::int64_t>(blockIdx.x) * values;
  const bool there = sample < place.count;
  if (threadIdx.x == 0) place.batch_labels[blockIdx.x] = there ? place.labels[sample] : kPaddingLabel;
  if (there) {
    write_sample(place, sample, data::draw_augment(place.spec, 0, 0, sample), out);
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < values; i += static_cast<int>(blockDim.x)) {
      out[i] = from_float<T>(0.0f);
    }
  }
}

__global__ void move_cursor(std::uint64_t* cursor, int batch) {
  *cursor += static_cast<std::uint64_t>(batch);
}

}  // namespace

void train_input(cudaStream_t stream, const TrainInput& input) {
  const Grid grid{static_cast<unsigned>(input.place.batch), kThreads};
  with_type(input.place.type, [&]<class T>(T) { launch("augment", stream, grid, train<T>, input); });
}

void evaluate_input(cudaStream_t stream, const InputPlace& place, std::uint64_t* cursor) {
  const Grid grid{static_cast<unsigned>(place.batch), kThreads};
  with_type(place.type,
            [&]<class T>(T) { launch("evaluation input", stream, grid, evaluate<T>, place, cursor); });
  launch("evaluation cursor", stream, {1, 1}, move_cursor, cursor, place.batch);
}

}  // namespace cifar_mpi::cuda
