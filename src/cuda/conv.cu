#include "cuda/conv.hpp"
#include "cuda/launch.cuh"

namespace cifar_mpi::cuda {
namespace {

/// One thread per kPatchGroup values of a row. Moves each value of the image about kernel² times, from the
/// cache, and every value of the patches once; the limit is writing them.
template <class T>
__global__ void gather(PatchShape shape, const T* __restrict__ image, T* __restrict__ patches) {
  const int groups = shape.row / kPatchGroup;
  const std::int64_t i = thread_index();
  if (i >= shape.rows() * groups) return;
  const std::int64_t row = i / groups;
  const int first = static_cast<int>(i - row * groups) * kPatchGroup;
  const PatchRow place = patch_row(shape, row);
  struct alignas(16) Group {
    T values[kPatchGroup];
  } group;
  for (int j = 0; j < kPatchGroup; ++j) {
    const std::int64_t source = patch_source(shape, place, first + j);
    group.values[j] = source < 0 ? from_float<T>(0.0f) : image[source];
  }
  *reinterpret_cast<Group*>(patches + row * shape.row + first) = group;
}

__global__ void round_values(const float* __restrict__ src, Bf16* __restrict__ dst, std::int64_t count) {
  const std::int64_t i = thread_index();
  if (i < count) dst[i] = from_float<Bf16>(src[i]);
}

/// Reads side by side and writes in strides; a few hundred KB that stay in the cache.
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

template <class T>
__global__ void turn(TurnedWeights shape, const float* __restrict__ src, T* __restrict__ dst) {
  const std::int64_t i = thread_index();
  if (i >= static_cast<std::int64_t>(shape.row) * shape.in) return;
  const std::int64_t wanted = static_cast<std::int64_t>(shape.kernel) * shape.kernel * shape.out * shape.in;
  dst[i] = from_float<T>(i < wanted ? src[turned_source(shape.kernel, shape.in, shape.out, i)] : 0.0f);
}

}  // namespace

void gather_patches(cudaStream_t stream, const PatchShape& shape, ValueType type, const void* image,
                    void* patches) {
  const Grid grid = grid_for(shape.rows() * (shape.row / kPatchGroup));
  with_type(type, [&]<class T>(T) { launch("patches", stream, grid, gather<T>, shape, image, patches); });
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

void turn_weights(cudaStream_t stream, const TurnedWeights& shape, const float* src, void* dst,
                  ValueType type) {
  const Grid grid = grid_for(std::int64_t{shape.row} * shape.in);
  with_type(type, [&]<class T>(T) { launch("turning weights", stream, grid, turn<T>, shape, src, dst); });
}

}  // namespace cifar_mpi::cuda
