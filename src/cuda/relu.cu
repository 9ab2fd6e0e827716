#include "cuda/divisor.hpp"
#include "cuda/launch.cuh"
#include "cuda/octet.cuh"
#include "cuda/relu.hpp"

namespace cifar_mpi::cuda {
namespace {

/// A NaN stays one.
__device__ float rectified(float value) { return value < 0.0f ? 0.0f : value; }

template <class T>
__device__ T masked(T y, T grad) {
  return to_float(y) > 0.0f ? grad : from_float<T>(0.0f);
}

/// Calls `whole` with the place of this thread's octet, or `single` with that of each value of the last one
/// when it is not full.
template <class Whole, class Single>
__device__ void for_octet(std::int64_t count, Whole whole, Single single) {
  const std::int64_t i = thread_index() * kOctet;
  if (i + kOctet <= count) {
    whole(i);
  } else {
#pragma unroll 1
    for (std::int64_t j = i; j < count; ++j) single(j);
  }
}

/// One thread per octet, as mask and shift: the limit is memory.
template <class T>
__global__ void rectify(const T* __restrict__ x, T* __restrict__ y, std::int64_t count) {
  for_octet(
      count,
      [=](std::int64_t i) {
        Octet<float> octet = to_floats(load_octet(x + i));
        for (int j = 0; j < kOctet; ++j) octet.values[j] = rectified(octet.values[j]);
        store_octet(y + i, from_floats<T>(octet));
      },
      [=](std::int64_t i) { y[i] = from_float<T>(rectified(to_float(x[i]))); });
}

/// `masked` and `sum` may be one of the sources, so nothing here is restrict.
template <class T>
__global__ void mask(const T* y, const T* grad, T* to, std::int64_t count) {
  for_octet(
      count,
      [=](std::int64_t i) {
        const Octet<T> outputs = load_octet(y + i);
        Octet<T> grads = load_octet(grad + i);
        for (int j = 0; j < kOctet; ++j) grads.values[j] = masked(outputs.values[j], grads.values[j]);
        store_octet(to + i, grads);
      },
      [=](std::int64_t i) { to[i] = masked(y[i], grad[i]); });
}

template <class T>
__global__ void add_two_values(const T* a, const T* b, T* sum, std::int64_t count) {
  for_octet(
      count,
      [=](std::int64_t i) {
        Octet<float> left = to_floats(load_octet(a + i));
        const Octet<float> right = to_floats(load_octet(b + i));
        for (int j = 0; j < kOctet; ++j) left.values[j] += right.values[j];
        store_octet(sum + i, from_floats<T>(left));
      },
      [=](std::int64_t i) { sum[i] = from_float<T>(to_float(a[i]) + to_float(b[i])); });
}

/// A block takes so many rows that its threads have about one octet each, or one value where the columns make
/// no octets; `units` of these are in a row.
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
    if constexpr (kWidth == kOctet) {
      Octet<float> octet = to_floats(load_octet(from + i * kOctet));
      const Octet<float> more = load_octet(shifts);
      for (int j = 0; j < kOctet; ++j) {
        const float value = octet.values[j] + more.values[j];
        octet.values[j] = relu ? rectified(value) : value;
      }
      store_octet(from + i * kOctet, from_floats<T>(octet));
    } else {
      const float value = to_float(from[i]) + *shifts;
      from[i] = from_float<T>(relu ? rectified(value) : value);
    }
  }
}

Grid grid_for_octets(std::int64_t count) { return grid_for((count + kOctet - 1) / kOctet); }

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
            [&]<class T>(T) { launch("relu", stream, grid_for_octets(count), rectify<T>, x, y, count); });
}

void relu_mask(cudaStream_t stream, ValueType type, const void* y, const void* grad, void* masked,
               std::int64_t count) {
  with_type(type, [&]<class T>(T) {
    launch("relu mask", stream, grid_for_octets(count), mask<T>, y, grad, masked, count);
  });
}

void add_values(cudaStream_t stream, ValueType type, const void* a, const void* b, void* sum,
                std::int64_t count) {
  with_type(type, [&]<class T>(T) {
    launch("add", stream, grid_for_octets(count), add_two_values<T>, a, b, sum, count);
  });
}

void add_bias(cudaStream_t stream, ValueType type, void* y, const float* bias, std::int64_t rows, int columns,
              bool relu) {
  with_type(type, [&]<class T>(T) {
    if (columns % kOctet == 0) {
      launch_shift<T, kOctet>(stream, y, bias, rows, columns, relu);
    } else {
      launch_shift<T, 1>(stream, y, bias, rows, columns, relu);
    }
  });
}

}  // namespace cifar_mpi::cuda
