#include "cuda/launch.cuh"
#include "cuda/plain_matmul.hpp"

namespace cifar_mpi::cuda {
namespace {

/// One thread per element of d: correct for any shape, fast for none.
template <class In, class Out>
__global__ void multiply(MatmulShape shape, const In* __restrict__ a, const In* __restrict__ b,
                         Out* __restrict__ d, const Out* __restrict__ bias) {
  const std::int64_t i = thread_index(), size = shape.m * shape.n;
  if (i >= size * shape.slices) return;
  const std::int64_t slice = i / size, depth = shape.k / shape.slices;
  const std::int64_t row = (i - slice * size) / shape.n, column = i - slice * size - row * shape.n;
  float sum = 0.0f;
  for (std::int64_t k = slice * depth; k < (slice + 1) * depth; ++k) {
    const float left = to_float(a[shape.transpose_a ? k * shape.m + row : row * shape.k + k]);
    const float right = to_float(b[shape.transpose_b ? column * shape.k + k : k * shape.n + column]);
    sum += left * right;
  }
  if (shape.epilogue != Epilogue::none) sum += to_float(bias[column]);
  d[i] = from_float<Out>(shape.epilogue == Epilogue::bias_relu && sum < 0.0f ? 0.0f : sum);
}

}  // namespace

void plain_matmul(cudaStream_t stream, const MatmulShape& shape, const void* a, const void* b, void* d,
                  const void* bias) {
  const Grid grid = grid_for(shape.m * shape.n * shape.slices);
  with_type(shape.in, [&]<class In>(In) {
    with_type(shape.out, [&]<class Out>(Out) {
      launch("plain matrix product", stream, grid, multiply<In, Out>, shape, a, b, d, bias);
    });
  });
}

}  // namespace cifar_mpi::cuda
