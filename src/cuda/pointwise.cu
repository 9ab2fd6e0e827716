#include "cuda/launch.cuh"
#include "cuda/relu.hpp"
#include "cuda/vec8.cuh"

namespace cifar_mpi::cuda {
namespace {

/// One thread per vec8, and the last may not be full. Moves each value once; a GELU takes some 60 instructions per
/// value, so in bf16 its limit may be these and not memory.
template <class T, bool kBackward>
__global__ void apply(model::Pointwise layer, std::int64_t count, const T* __restrict__ x,
                      const T* __restrict__ grad_y, T* __restrict__ y) {
  const std::int64_t first = thread_index() * kVec8;
  const auto one = [&](float value, float grad) {
    if constexpr (kBackward) return pointwise_slope(layer, value, DeviceMath{}) * grad;
    return pointwise_value(layer, value, DeviceMath{});
  };
  if (first + kVec8 <= count) {
    Vec8<float> values = to_floats(load_vec8(x + first));
    Vec8<float> grads = {};
    if constexpr (kBackward) grads = to_floats(load_vec8(grad_y + first));
    for (int j = 0; j < kVec8; ++j) values.values[j] = one(values.values[j], grads.values[j]);
    store_vec8(y + first, from_floats<T>(values));
    return;
  }
#pragma unroll 1
  for (std::int64_t i = first; i < count; ++i) {
    y[i] = from_float<T>(one(to_float(x[i]), kBackward ? to_float(grad_y[i]) : 0.0f));
  }
}

Grid grid_of(const PointwiseShape& shape) { return grid_for((shape.count + kVec8 - 1) / kVec8); }

}  // namespace

void pointwise_forward(cudaStream_t stream, const PointwiseShape& shape, const void* x, void* y) {
  with_type(shape.type, [&]<class T>(T) {
    launch("pointwise", stream, grid_of(shape), apply<T, false>, shape.layer, shape.count, x,
           static_cast<const void*>(nullptr), y);
  });
}

void pointwise_backward(cudaStream_t stream, const PointwiseShape& shape, const void* x, const void* grad_y,
                        void* grad_x) {
  with_type(shape.type, [&]<class T>(T) {
    launch("pointwise backward", stream, grid_of(shape), apply<T, true>, shape.layer, shape.count, x, grad_y,
           grad_x);
  });
}

}  // namespace cifar_mpi::cuda
