#include "cuda/conv.hpp"
#include "cuda/launch.cuh"
#include "cuda/vec8.cuh"

namespace cifar_mpi::cuda {
namespace {

/// Shared memory that a block gets without a special request.
constexpr int kMostShared = 48 << 10;

template <class Unit>
__device__ Unit unit_of_ones() {
  if constexpr (requires { Unit::values; }) {
    return {};  // vec8s of channels fill a row, so there is no place for a 1
  } else {
    return from_float<Unit>(1.0f);
  }
}

/// One thread per value, or per vec8 of channels of one pixel. Each block belongs to one image, so indexes
/// within it have 32 bits. vec8s are limited by writing the patches, single values by instructions.
template <class Unit>
__global__ void gather(Im2colPlace place, Divisor blocks, const Unit* __restrict__ image,
                       Unit* __restrict__ patches) {
  const int block = static_cast<int>(blockIdx.x);
  const std::int64_t b = blocks.quotient(block);
  const int i = blocks.remainder(block) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= place.patch_units()) return;
  const int source = place.source(i);
  patches[b * place.patch_units() + i] = source >= 0 ? image[b * place.image_units() + source]
                                         : source == Im2colPlace::kOne ? unit_of_ones<Unit>()
                                                                       : Unit{};
}

/// The same group of every `band.lanes`-th pixel from `lane` on; the byte offsets of its values in a window
/// are computed once. `patches` points to the row of the band's first pixel.
template <class T>
__device__ void write_group(const Im2colPlace& place, const PatchBand& band, const T* kept, int group,
                            int lane, int pixels, T* patches) {
  constexpr int kBytes = static_cast<int>(sizeof(T));
  const char* firsts[kVec8];
  int steps[kVec8];
  for (int j = 0; j < kVec8; ++j) {
    const int k = group * kVec8 + j;
    steps[j] = k < place.inner ? kBytes : 0;  // padding of the row is the 1 or the last zero for every pixel
    const int filler = k == place.one ? band.kept + 1 : band.kept;
    firsts[j] = reinterpret_cast<const char*>(kept + (k < place.inner ? band.offset(place, k) : filler));
  }
  const std::int64_t row = place.row.value();
  T* to = patches + lane * row + group * kVec8;
#pragma unroll 1
  for (int pixel = lane; pixel < pixels; pixel += band.lanes, to += band.lanes * row) {
    const int window = band.window(place, pixel);
    Vec8<T> vec8;
    for (int j = 0; j < kVec8; ++j) {
      vec8.values[j] = *reinterpret_cast<const T*>(firsts[j] + window * steps[j]);
    }
    store_vec8(to, vec8);
  }
}

/// For any number of channels: one block per band of an image, kept in shared memory; each thread writes
/// vec8s. Each takes some 40 instructions, and as many for the band if blocks must be small: the limit is
/// writing the patches.
template <class T>
__global__ void __launch_bounds__(kThreads)
    gather_band(Im2colPlace place, PatchBand band, const T* __restrict__ image, T* __restrict__ patches) {
  T* const kept = dynamic_shared<T>();
  const int block = static_cast<int>(blockIdx.x), me = static_cast<int>(threadIdx.x);
  const std::int64_t b = band.bands.quotient(block);
  const int top = band.bands.remainder(block) * band.rows;
  image += b * place.image_units();
  for (int i = me; i <= band.kept + 1; i += kThreads) {
    const int source = i < band.kept ? band.source(place, top, i) : -1;
    kept[i] = source >= 0 ? image[source] : from_float<T>(i > band.kept ? 1.0f : 0.0f);
  }
  __syncthreads();
  const int lane = band.groups.quotient(me);
  if (lane >= band.lanes) return;
  const int rows = place.height - top < band.rows ? place.height - top : band.rows;
  patches += b * place.patch_units() + std::int64_t{top} * place.width.value() * place.row.value();
  for (int group = band.groups.remainder(me); group < band.groups.value(); group += kThreads) {
    write_group(place, band, kept, group, lane, rows * place.width.value(), patches);
  }
}

template <class Unit>
void gather_units(cudaStream_t stream, const Im2colShape& shape, int unit, const void* image, void* patches) {
  const Im2colPlace place(shape, unit);
  const Divisor blocks(static_cast<int>(blocks_for(place.patch_units())));
  const Grid grid{static_cast<unsigned>(shape.batch) * static_cast<unsigned>(blocks.value()), kThreads};
  launch("patches", stream, grid, gather<Unit>, place, blocks, image, patches);
}

template <class T>
void gather_bands(cudaStream_t stream, const Im2colShape& shape, const PatchBand& band, const void* image,
                  void* patches) {
  const Grid grid{static_cast<unsigned>(shape.batch) * static_cast<unsigned>(band.bands.value()), kThreads,
                  (static_cast<std::size_t>(band.kept) + 2) * sizeof(T)};
  launch("patches", stream, grid, gather_band<T>, Im2colPlace(shape), band, image, patches);
}

__global__ void round_values(const float* __restrict__ src, Bf16* __restrict__ dst, std::int64_t count) {
  const std::int64_t i = thread_index();
  if (i < count) dst[i] = from_float<Bf16>(src[i]);
}

/// Contiguous reads and strided writes of a few hundred KB, which stay in the cache.
template <class T>
__global__ void transpose_to(const float* __restrict__ src, T* __restrict__ dst, int rows, int columns) {
  const std::int64_t i = thread_index();
  if (i >= static_cast<std::int64_t>(rows) * columns) return;
  const std::int64_t row = i / columns;
  dst[(i - row * columns) * rows + row] = from_float<T>(src[i]);
}

template <class T>
__global__ void transpose_from(const T* __restrict__ src, float* __restrict__ dst, int rows, int columns) {
  const std::int64_t i = thread_index();
  if (i >= static_cast<std::int64_t>(rows) * columns) return;
  const std::int64_t row = i / columns;
  dst[i] = to_float(src[(i - row * columns) * rows + row]);
}

__global__ void move(float* __restrict__ src, float* __restrict__ dst, int count) {
  const auto i = static_cast<int>(thread_index());
  if (i >= count) return;
  dst[i] = src[i];
  src[i] = 0.0f;
}

template <class T>
__global__ void rotate(RotatedWeights shape, const float* __restrict__ src, T* __restrict__ dst) {
  const std::int64_t i = thread_index();
  if (i >= static_cast<std::int64_t>(shape.row) * shape.in) return;
  const std::int64_t wanted = static_cast<std::int64_t>(shape.kernel) * shape.kernel * shape.out * shape.in;
  dst[i] = from_float<T>(i < wanted ? src[rotated_source(shape.kernel, shape.in, shape.out, i)] : 0.0f);
}

}  // namespace

void im2col(cudaStream_t stream, const Im2colShape& shape, ValueType type, const void* image, void* patches) {
  const bool groups = shape.row % kIm2colGroup == 0;
  const bool every_pixel = shape.stride == 1 && shape.spread == 1 && shape.out_height == shape.height &&
                           shape.out_width == shape.width;
  with_type(type, [&]<class T>(T) {
    if (groups && shape.channels % kVec8 == 0) {
      return gather_units<Vec8<T>>(stream, shape, kVec8, image, patches);
    }
    if (groups && every_pixel) {
      const PatchBand band(shape, kThreads, kMostShared / static_cast<int>(sizeof(T)));
      if (band.rows > 0) return gather_bands<T>(stream, shape, band, image, patches);
    }
    gather_units<T>(stream, shape, 1, image, patches);
  });
}

void round_to_bf16(cudaStream_t stream, const float* src, void* dst, std::int64_t count) {
  launch("rounding to bf16", stream, grid_for(count), round_values, src, dst, count);
}

void transpose_weights(cudaStream_t stream, const float* src, void* dst, ValueType type, int rows,
                       int columns) {
  const Grid grid = grid_for(std::int64_t{rows} * columns);
  with_type(type, [&]<class T>(T) {
    launch("transposing weights", stream, grid, transpose_to<T>, src, dst, rows, columns);
  });
}

void transpose_gradient(cudaStream_t stream, const void* src, ValueType type, float* dst, int rows,
                        int columns) {
  const Grid grid = grid_for(std::int64_t{rows} * columns);
  with_type(type, [&]<class T>(T) {
    launch("transposing a gradient", stream, grid, transpose_from<T>, src, dst, rows, columns);
  });
}

void move_values(cudaStream_t stream, float* src, float* dst, int count) {
  launch("moving a row", stream, grid_for(count), move, src, dst, count);
}

void rotate_weights(cudaStream_t stream, const RotatedWeights& shape, const float* src, void* dst,
                    ValueType type) {
  const Grid grid = grid_for(std::int64_t{shape.row} * shape.in);
  with_type(type, [&]<class T>(T) { launch("rotate weights", stream, grid, rotate<T>, shape, src, dst); });
}

}  // namespace cifar_mpi::cuda
