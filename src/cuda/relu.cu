#include "cuda/launch.cuh"
#include "cuda/relu.hpp"

namespace cifar_mpi::cuda {
namespace {

template <class T>
__global__ void rectify(const T* __restrict__ x, T* __restrict__ y, std::int64_t count) {
  const std::int64_t i = thread_index();
  if (i >= count) return;
  const float value = to_float(x[i]);
  y[i] = from_float<T>(value < 0.0f ? 0.0f : value);
}

template <class T>
__global__ void mask(const T* __restrict__ y, T* __restrict__ grad, std::int64_t count) {
  const std::int64_t i = thread_index();
  if (i < count && !(to_float(y[i]) > 0.0f)) grad[i] = from_float<T>(0.0f);
}

template <class T>
__global__ void shift(T* __restrict__ y, const float* __restrict__ bias, std::int64_t count, int columns,
                      bool relu) {
  const std::int64_t i = thread_index();
  if (i >= count) return;
  const float value = to_float(y[i]) + bias[i % columns];
  y[i] = from_float<T>(relu && value < 0.0f ? 0.0f : value);
}

}  // namespace

void relu_forward(cudaStream_t stream, ValueType type, const void* x, void* y, std::int64_t count) {
  with_type(type, [&]<class T>(T) { launch("relu", stream, grid_for(count), rectify<T>, x, y, count); });
}

void relu_mask(cudaStream_t stream, ValueType type, const void* y, void* grad, std::int64_t count) {
  with_type(type, [&]<class T>(T) { launch("relu mask", stream, grid_for(count), mask<T>, y, grad, count); });
}

void add_bias(cudaStream_t stream, ValueType type, void* y, const float* bias, std::int64_t rows, int columns,
              bool relu) {
  const std::int64_t count = rows * columns;
  with_type(type, [&]<class T>(T) {
    launch("bias", stream, grid_for(count), shift<T>, y, bias, count, columns, relu);
  });
}

}  // namespace cifar_mpi::cuda
