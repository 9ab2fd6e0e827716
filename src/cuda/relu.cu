#include "cuda/launch.hpp"
#include "cuda/numbers.cuh"
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
  if (type == ValueType::bf16) {
    rectify<<<blocks_for(count), kThreads, 0, stream>>>(static_cast<const Bf16*>(x), static_cast<Bf16*>(y),
                                                        count);
  } else {
    rectify<<<blocks_for(count), kThreads, 0, stream>>>(static_cast<const float*>(x), static_cast<float*>(y),
                                                        count);
  }
  check_launch("relu");
}

void relu_mask(cudaStream_t stream, ValueType type, const void* y, void* grad, std::int64_t count) {
  if (type == ValueType::bf16) {
    mask<<<blocks_for(count), kThreads, 0, stream>>>(static_cast<const Bf16*>(y), static_cast<Bf16*>(grad),
                                                     count);
  } else {
    mask<<<blocks_for(count), kThreads, 0, stream>>>(static_cast<const float*>(y), static_cast<float*>(grad),
                                                     count);
  }
  check_launch("relu mask");
}

void add_bias(cudaStream_t stream, ValueType type, void* y, const float* bias, std::int64_t rows, int columns,
              bool relu) {
  const std::int64_t count = rows * columns;
  if (type == ValueType::bf16) {
    shift<<<blocks_for(count), kThreads, 0, stream>>>(static_cast<Bf16*>(y), bias, count, columns, relu);
  } else {
    shift<<<blocks_for(count), kThreads, 0, stream>>>(static_cast<float*>(y), bias, count, columns, relu);
  }
  check_launch("bias");
}

}  // namespace cifar_mpi::cuda
