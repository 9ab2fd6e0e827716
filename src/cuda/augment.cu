#include "cuda/augment.hpp"
#include "cuda/augment_math.hpp"
#include "cuda/launch.cuh"

namespace cifar_mpi::cuda {
namespace {

using data::kMostChannels;

/// Each thread of a warp adds to its own word, because additions to a shared word are serialized.
constexpr int kWords = 32;

struct Sums {
  std::uint32_t values[kWords], squares[kWords];
};

/// Issues all loads of a pixel before the first use.
struct Pixel {
  std::uint32_t v[kMostChannels];
};

/// `source` as returned by crop_source.
__device__ Pixel pixel_of(const std::uint8_t* image, int source, int channels) {
  Pixel pixel;
  for (int c = 0; c < kMostChannels; ++c) pixel.v[c] = c < channels && source >= 0 ? image[source + c] : 0;
  return pixel;
}

/// Adds this thread's pixels to the words, which are zero.
__device__ void add_pixels(const data::AugmentSpec& spec, const data::AugmentDraw& draw, const Divisor& width,
                           const std::uint8_t* image, Sums* sums) {
  const int me = static_cast<int>(threadIdx.x);
  const int channels = spec.source.channels, pixels = spec.crop_height * spec.crop_width;
  std::uint32_t values[kMostChannels] = {}, squares[kMostChannels] = {};
  for (int pixel = me; pixel < pixels; pixel += kThreads) {
    const Pixel found = pixel_of(image, crop_source(spec, draw, width, pixel), channels);
    for (int c = 0; c < kMostChannels; ++c) {
      values[c] += found.v[c];
      squares[c] += found.v[c] * found.v[c];
    }
  }
  for (int c = 0; c < kMostChannels; ++c) {
    if (c >= channels) break;
    atomicAdd(&sums[c].values[me % kWords], values[c]);
    atomicAdd(&sums[c].squares[me % kWords], squares[c]);
  }
}

/// The map of the crop with these sums, for all threads after a barrier.
__device__ void find_map(const data::AugmentSpec& spec, float contrast, const Sums* sums,
                         data::AffineMap* map) {
  __shared__ std::uint32_t totals[2][kMostChannels];
  const int me = static_cast<int>(threadIdx.x), channels = spec.source.channels;
  if (me < 2 * channels) {
    const Sums& mine = sums[me / 2];
    std::uint32_t total = 0;
    for (int i = 0; i < kWords; ++i) total += me % 2 == 0 ? mine.values[i] : mine.squares[i];
    totals[me % 2][me / 2] = total;
  }
  __syncthreads();
  if (me != 0) return;
  *map = data::affine_map(totals[0], totals[1], channels, spec.crop_height * spec.crop_width, contrast,
                          [](double square) { return sqrt(square); });
}

/// The pixel of a downsampled image, of normalized values of the crop.
template <class T>
__device__ void write_downsampled(const data::AugmentSpec& spec, const data::AugmentDraw& draw,
                                  const Divisor& width, const std::uint8_t* image, const data::AffineMap& map,
                                  int pixel, T* to) {
  const int y = pixel / spec.image_size, x = pixel - y * spec.image_size;
  float sums[kMostChannels] = {};
  const float weights = visit_taps(spec, y, x, [&](float weight, int row, int column) {
    if (draw.is_cut(spec, row, column)) return;
    const Pixel found =
        pixel_of(image, crop_source(spec, draw, width, row * spec.crop_width + column), spec.source.channels);
    for (int c = 0; c < kMostChannels; ++c)
      sums[c] += weight * (map.scale[c] * static_cast<float>(found.v[c]) + map.shift[c]);
  });
  for (int c = 0; c < spec.source.channels; ++c) to[c] = from_float<T>(sums[c] / weights);
}

/// One block writes one sample. The sums are integers, so the order of the threads' additions does not
/// matter.
template <class T>
__device__ void write_sample(const InputPlace& place, const Divisor& width, std::uint64_t sample,
                             const data::AugmentDraw& draw, T* out) {
  __shared__ Sums sums[kMostChannels];
  __shared__ data::AffineMap map;
  const data::AugmentSpec& spec = place.spec;
  const int channels = spec.source.channels;
  const std::uint8_t* const image = place.images + sample * static_cast<std::uint64_t>(spec.source.count());
  const int me = static_cast<int>(threadIdx.x);
  static_assert(kMostChannels * kWords <= kThreads);
  if (me < kMostChannels * kWords) {
    sums[me / kWords].values[me % kWords] = sums[me / kWords].squares[me % kWords] = 0;
  }
  __syncthreads();
  if (spec.normalize == data::Normalize::image) {
    add_pixels(spec, draw, width, image, sums);
    __syncthreads();
    find_map(spec, draw.contrast, sums, &map);
  } else if (me == 0) {
    map = data::dataset_map(spec, draw);
  }
  __syncthreads();
  if (spec.downsamples()) {
    for (int pixel = me; pixel < spec.image_size * spec.image_size; pixel += kThreads)
      write_downsampled(spec, draw, width, image, map, pixel, out + pixel * channels);
    return;
  }
  float scales[kMostChannels], shifts[kMostChannels];
  for (int c = 0; c < kMostChannels; ++c) {
    scales[c] = map.scale[c];
    shifts[c] = map.shift[c];
  }
  for (int pixel = me; pixel < spec.crop_height * spec.crop_width; pixel += kThreads) {
    const Pixel values = pixel_of(image, crop_source(spec, draw, width, pixel), channels);
    T* const to = out + pixel * channels;
    const int row = width.quotient(pixel);
    const bool cut = draw.is_cut(spec, row, pixel - row * width.value());
    for (int c = 0; c < kMostChannels; ++c) {
      const float value = scales[c] * static_cast<float>(values.v[c]) + shifts[c];
      if (c < channels) to[c] = from_float<T>(cut ? 0.0f : value);
    }
  }
}

/// One block per sample. Reads a crop twice, the second time from the cache, and writes it once; downsampling reads each
/// pixel several times there. Little data moves, so the limit is the serial work of one thread: the draw and the map.
template <class T>
__global__ void __launch_bounds__(kThreads) train_sample(TrainInput input, Divisor width) {
  __shared__ data::SampleRef sample;
  __shared__ data::AugmentDraw draw;
  const InputPlace& place = input.place;
  if (threadIdx.x == 0) {
    sample = input.order.at(*input.step, input.first + blockIdx.x);
    draw = data::draw_augment(place.spec, input.seed, sample.epoch, sample.id);
  }
  __syncthreads();
  // loads while the sample is written
  const std::uint8_t label = threadIdx.x == 0 ? place.labels[sample.local] : kPaddingLabel;
  write_sample(
      place, width, sample.local, draw,
      static_cast<T*>(place.x) + static_cast<std::int64_t>(blockIdx.x) * place.spec.output().count());
  if (threadIdx.x == 0) place.batch_labels[blockIdx.x] = label;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    evaluate_sample(InputPlace place, Divisor width, const std::uint64_t* __restrict__ cursor) {
  const std::uint64_t sample = *cursor + blockIdx.x;
  const int values = place.spec.output().count();
  T* const out = static_cast<T*>(place.x) + static_cast<std::int64_t>(blockIdx.x) * values;
  const bool there = sample < place.count;
  if (threadIdx.x == 0) place.batch_labels[blockIdx.x] = there ? place.labels[sample] : kPaddingLabel;
  if (there) {
    write_sample(place, width, sample, data::draw_augment(place.spec, 0, 0, sample), out);
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < values; i += kThreads) out[i] = from_float<T>(0.0f);
  }
}

__global__ void move_cursor(std::uint64_t* cursor, int batch) {
  *cursor += static_cast<std::uint64_t>(batch);
}

}  // namespace

void train_input(cudaStream_t stream, const TrainInput& input) {
  const Grid grid{static_cast<unsigned>(input.place.batch), kThreads};
  const Divisor width(input.place.spec.crop_width);
  with_type(input.place.type,
            [&]<class T>(T) { launch("augment", stream, grid, train_sample<T>, input, width); });
}

void evaluate_input(cudaStream_t stream, const InputPlace& place, std::uint64_t* cursor) {
  const Grid grid{static_cast<unsigned>(place.batch), kThreads};
  const Divisor width(place.spec.crop_width);
  with_type(place.type, [&]<class T>(T) {
    launch("evaluation input", stream, grid, evaluate_sample<T>, place, width, cursor);
  });
  launch("evaluation cursor", stream, {1, 1}, move_cursor, cursor, place.batch);
}

}  // namespace cifar_mpi::cuda
