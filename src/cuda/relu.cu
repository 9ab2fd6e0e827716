#include "cuda/divisor.hpp"
#include "cuda/launch.cuh"
#include "cuda/relu.hpp"
#include "cuda/vec8.cuh"

namespace cifar_mpi::cuda {
namespace {

template <class T>
__device__ T masked(T y, T grad) {
  return to_float(y) > 0.0f ? grad : from_float<T>(0.0f);
}

/// Calls `whole` with the place of this thread's vec8, or `single` with that of each value of the last one
/// when it is not full.
template <class Whole, class Single>
__device__ void for_vec8(std::int64_t count, Whole whole, Single single) {
  const std::int64_t i = thread_index() * kVec8;
  if (i + kVec8 <= count) {
    whole(i);
  } else {
#pragma unroll 1
    for (std::int64_t j = i; j < count; ++j) single(j);
  }
}

/// One thread per vec8, as mask and shift: the limit is memory. `x` may be `y`, so nothing here is restrict.
template <class T>
__global__ void rectify(const T* x, T* y, std::int64_t count) {
  for_vec8(
      count,
      [=](std::int64_t i) {
        Vec8<float> vec8 = to_floats(load_vec8(x + i));
        for (int j = 0; j < kVec8; ++j) vec8.values[j] = rectified(vec8.values[j]);
        store_vec8(y + i, from_floats<T>(vec8));
      },
      [=](std::int64_t i) { y[i] = from_float<T>(rectified(to_float(x[i]))); });
}

/// `masked` and `sum` may be one of the sources, so nothing here is restrict.
template <class T>
__global__ void mask(const T* y, const T* grad, T* to, std::int64_t count) {
  for_vec8(
      count,
      [=](std::int64_t i) {
        const Vec8<T> outputs = load_vec8(y + i);
        Vec8<T> grads = load_vec8(grad + i);
        for (int j = 0; j < kVec8; ++j) grads.values[j] = masked(outputs.values[j], grads.values[j]);
        store_vec8(to + i, grads);
      },
      [=](std::int64_t i) { to[i] = masked(y[i], grad[i]); });
}

template <class T>
__global__ void add_two_values(const T* a, const T* b, T* sum, std::int64_t count) {
  for_vec8(
      count,
      [=](std::int64_t i) {
        Vec8<float> left = to_floats(load_vec8(a + i));
        const Vec8<float> right = to_floats(load_vec8(b + i));
        for (int j = 0; j < kVec8; ++j) left.values[j] += right.values[j];
        store_vec8(sum + i, from_floats<T>(left));
      },
      [=](std::int64_t i) { sum[i] = from_float<T>(to_float(a[i]) + to_float(b[i])); });
}

/// A block takes so many rows that its threads have about one vec8 each, or one value where the columns make
/// no vec8s; `units` of these are in a row.
template <class T, int kWidth>
__global__ void shift(T* __restrict__ y, const float* __restrict__ bias, std::int64_t rows, Divisor units,
                      int rows_per_block, bool relu) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * rows_per_block;
  const std::int64_t left = rows - first;
  const int wanted = (left < rows_per_block ? static_cast<int>(left) : rows_per_block) * units.value();
  T* const from = y + first * units.value() * kWidth;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < wanted; i += kThreads) {
    const float* const shifts = bias + units.remainder(i) * kWidth;
    if constexpr (kWidth == kVec8) {
      Vec8<float> vec8 = to_floats(load_vec8(from + i * kVec8));
      const Vec8<float> more = load_vec8(shifts);
      for (int j = 0; j < kVec8; ++j) {
        const float value = vec8.values[j] + more.values[j];
        vec8.values[j] = relu ? rectified(value) : value;
      }
      store_vec8(from + i * kVec8, from_floats<T>(vec8));
    } else {
      const float value = to_float(from[i]) + *shifts;
      from[i] = from_float<T>(relu ? rectified(value) : value);
    }
  }
}

Grid grid_for_vec8s(std::int64_t count) { return grid_for((count + kVec8 - 1) / kVec8); }

template <class T, int kWidth>
void launch_shift(cudaStream_t stream, void* y, const float* bias, std::int64_t rows, int columns,
                  bool relu) {
  const Divisor units(columns / kWidth);
  const int rows_per_block = units.value() < kThreads ? kThreads / units.value() : 1;
  const Grid grid{static_cast<unsigned>((rows + rows_per_block - 1) / rows_per_block), kThreads};
  launch("bias", stream, grid, shift<T, kWidth>, y, bias, rows, units, rows_per_block, relu);
}

}  // namespace

void relu_forward(cudaStream_t stream, ValueType type, const void* x, void* y, std::int64_t count) {
  with_type(type,
            [&]<class T>(T) { launch("relu", stream, grid_for_vec8s(count), rectify<T>, x, y, count); });
}

void relu_mask(cudaStream_t stream, ValueType type, const void* y, const void* grad, void* masked,
               std::int64_t count) {
  with_type(type, [&]<class T>(T) {
    launch("relu mask", stream, grid_for_vec8s(count), mask<T>, y, grad, masked, count);
  });
}

void add_values(cudaStream_t stream, ValueType type, const void* a, const void* b, void* sum,
                std::int64_t count) {
  with_type(type, [&]<class T>(T) {
    launch("add", stream, grid_for_vec8s(count), add_two_values<T>, a, b, sum, count);
  });
}

void add_bias(cudaStream_t stream, ValueType type, void* y, const float* bias, std::int64_t rows, int columns,
              bool relu) {
  with_type(type, [&]<class T>(T) {
    if (columns % kVec8 == 0) {
      launch_shift<T, kVec8>(stream, y, bias, rows, columns, relu);
    } else {
      launch_shift<T, 1>(stream, y, bias, rows, columns, relu);
    }
  });
}

}  // namespace cifar_mpi::cuda
