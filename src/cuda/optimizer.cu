#include "cuda/last_block.cuh"
#include "cuda/launch.cuh"
#include "cuda/numbers.cuh"
#include "cuda/optimizer.hpp"

namespace cifar_mpi::cuda {
namespace {

using optim::UpdateRates;

/// The sum over the threads of the block, valid in thread 0.
__device__ double add_threads(double mine) {
  __shared__ double all[kThreads];
  const int me = static_cast<int>(threadIdx.x);
  all[me] = mine;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (me < half) all[me] += all[me + half];
    __syncthreads();
  }
  const double sum = all[0];
  __syncthreads();
  return sum;
}

__device__ double half_square(const float4& w) {
  return 0.5 * (static_cast<double>(w.x) * w.x + static_cast<double>(w.y) * w.y +
                static_cast<double>(w.z) * w.z + static_cast<double>(w.w) * w.w);
}

/// Four floats of each array, loaded together.
struct Four {
  float4 w, g, ema;
};

__device__ Four load_four(const Update& work, std::uint64_t i) {
  return {*reinterpret_cast<const float4*>(work.params + i), *reinterpret_cast<const float4*>(work.grads + i),
          *reinterpret_cast<const float4*>(work.ema + i)};
}

__device__ void update_four(const Update& work, const UpdateRates& rates, std::uint64_t i,
                            const Segment& segment, const Four& four) {
  const float decay = segment.decay, rate = rates.learning_rate * segment.rate_factor;
  float4 w = four.w, ema = four.ema;
  const float4& g = four.g;
  w.x = optim::updated_weight(w.x, g.x, decay, rate);
  w.y = optim::updated_weight(w.y, g.y, decay, rate);
  w.z = optim::updated_weight(w.z, g.z, decay, rate);
  w.w = optim::updated_weight(w.w, g.w, decay, rate);
  ema.x = optim::updated_ema(ema.x, w.x, rates.ema_share);
  ema.y = optim::updated_ema(ema.y, w.y, rates.ema_share);
  ema.z = optim::updated_ema(ema.z, w.z, rates.ema_share);
  ema.w = optim::updated_ema(ema.w, w.w, rates.ema_share);
  *reinterpret_cast<float4*>(work.params + i) = w;
  *reinterpret_cast<float4*>(work.ema + i) = ema;
}

/// Each thread four floats of every array at a time, the next ones on their way while it works on these and
/// while thread 0 finds the rates, which takes a power and divisions in double. The limit is memory, or the
/// cache where the parameters stay in it.
__global__ void __launch_bounds__(kThreads) update_all(const __grid_constant__ Update work) {
  __shared__ UpdateRates rates;
  const Segments& segments = work.segments;
  const std::uint64_t end = segments.items[segments.count - 1].end;
  const std::uint64_t stride = std::uint64_t{4} * kThreads * kUpdateBlocks;
  std::uint64_t i = segments.items[0].begin + 4 * static_cast<std::uint64_t>(thread_index());
  Four next = {};
  if (i < end) next = load_four(work, i);
  const bool apply = isfinite(*work.loss_sum);
  if (threadIdx.x == 0) {
    rates = optim::update_rates(work.rule, work.ema_decay, *work.step, DeviceMath{});
  }
  __syncthreads();
  double sum = 0.0;
  for (; i < end; i += stride) {
    const Four four = next;
    if (i + stride < end) next = load_four(work, i + stride);
    const Segment segment = segment_of(segments, i);
    if (segment.decay != 0.0f) sum += static_cast<double>(segment.decay) * half_square(four.w);
    if (apply) update_four(work, rates, i, segment, four);
  }
  sum = add_threads(sum);
  if (threadIdx.x == 0) work.partials[blockIdx.x] = sum;
  if (!is_last_block(work.counter, gridDim.x)) return;
  double mine = 0.0;
  for (int block = static_cast<int>(threadIdx.x); block < kUpdateBlocks; block += kThreads) {
    mine += __ldcg(work.partials + block);
  }
  const double total = add_threads(mine);
  if (threadIdx.x == 0) *work.decay_sum = work.adds ? *work.decay_sum + total : total;
}

}  // namespace

void update(cudaStream_t stream, const Update& work) {
  launch("update", stream, {kUpdateBlocks, kThreads}, update_all, work);
}

}  // namespace cifar_mpi::cuda
