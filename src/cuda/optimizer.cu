#include <algorithm>

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

__device__ double square(const float4& v) {
  return static_cast<double>(v.x) * v.x + static_cast<double>(v.y) * v.y + static_cast<double>(v.z) * v.z +
         static_cast<double>(v.w) * v.w;
}

__device__ const float4& four_at(const float* array, std::uint64_t i) {
  return *reinterpret_cast<const float4*>(array + i);
}

/// Four floats of each array, loaded together.
struct Four {
  float4 w, g, ema, s, q;
};

template <class Rule>
__device__ Four load_four(const Update& work, std::uint64_t i) {
  Four four{four_at(work.params, i), four_at(work.grads, i), four_at(work.ema, i), {}, {}};
  if constexpr (Rule::kStates > 0) four.s = four_at(work.states[0], i);
  if constexpr (Rule::kStates > 1) four.q = four_at(work.states[1], i);
  return four;
}

/// Without clipping there is no multiplication, because the compiler could fuse it and change bits.
template <class Rule, bool kClips>
__device__ void update_four(const Update& work, const UpdateRates& rates, std::uint64_t i,
                            const Segment& segment, std::uint64_t step, Four four) {
  const float decay = segment.decay, rate = engine::rate_of(segment, rates.learning_rate, step);
  const auto update_one = [&](float& w, float g, float& ema, float& s, float& q) {
    w = Rule::apply(w, kClips ? rates.clip * g : g, decay, rate, rates, s, q, DeviceMath{});
    ema = optim::updated_ema(ema, w, rates.ema_share);
  };
  update_one(four.w.x, four.g.x, four.ema.x, four.s.x, four.q.x);
  update_one(four.w.y, four.g.y, four.ema.y, four.s.y, four.q.y);
  update_one(four.w.z, four.g.z, four.ema.z, four.s.z, four.q.z);
  update_one(four.w.w, four.g.w, four.ema.w, four.s.w, four.q.w);
  *reinterpret_cast<float4*>(work.params + i) = four.w;
  *reinterpret_cast<float4*>(work.ema + i) = four.ema;
  if constexpr (Rule::kStates > 0) *reinterpret_cast<float4*>(work.states[0] + i) = four.s;
  if constexpr (Rule::kStates > 1) *reinterpret_cast<float4*>(work.states[1] + i) = four.q;
}

/// The sum over the blocks, valid in thread 0 of the last one; the others return early.
template <class Use>
__device__ void add_blocks(double mine, double* partials, unsigned* counter, Use use) {
  const double sum = add_threads(mine);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
  if (!is_last_block(counter, gridDim.x)) return;
  double part = 0.0;
  for (unsigned block = threadIdx.x; block < gridDim.x; block += kThreads) {
    part += __ldcg(partials + block);
  }
  const double total = add_threads(part);
  if (threadIdx.x == 0) use(total);
}

/// Each thread takes four floats of every array at a time. The next ones load while it works on these and
/// while thread 0 computes the rates, which takes a power and divisions in double. The limit is memory, or
/// the cache if the parameters stay in it.
template <class Rule, bool kClips>
__global__ void __launch_bounds__(kThreads) update_all(const __grid_constant__ Update work) {
  __shared__ UpdateRates rates;
  const Segments& segments = work.segments;
  const std::uint64_t end = segments.items[segments.count - 1].end;
  const std::uint64_t stride = std::uint64_t{4} * kThreads * kUpdateBlocks;
  std::uint64_t i = segments.items[0].begin + 4 * static_cast<std::uint64_t>(thread_index());
  Four next = {};
  if (i < end) next = load_four<Rule>(work, i);
  const bool apply =
      work.average_steps == 0 || (isfinite(*work.loss_sum) && (!kClips || isfinite(*work.gradient_norm)));
  if (threadIdx.x == 0) {
    rates = optim::update_rates(work.rule, work.optimizer, work.average, *work.step, DeviceMath{},
                                work.average_steps);
    if (kClips) rates.clip = optim::clip_factor(work.clip_norm, *work.gradient_norm);
  }
  __syncthreads();
  const std::uint64_t step = *work.step;
  double sum = 0.0;
  for (; i < end; i += stride) {
    const Four four = next;
    if (i + stride < end) next = load_four<Rule>(work, i + stride);
    const Segment segment = segment_of(segments, i);
    if (work.decays_by_loss && optim::decays_by_loss(work.optimizer.kind) && segment.decay != 0.0f) {
      sum += static_cast<double>(segment.decay) * (0.5 * square(four.w));
    }
    if (apply) update_four<Rule, kClips>(work, rates, i, segment, step, four);
  }
  add_blocks(sum, work.partials, work.counter,
             [&](double total) { *work.decay_sum = work.adds ? *work.decay_sum + total : total; });
}

__global__ void __launch_bounds__(kThreads) norm_of_all(const GradientNorm work) {
  double sum = 0.0;
  const std::uint64_t stride = std::uint64_t{4} * kThreads * kUpdateBlocks;
  for (std::uint64_t i = 4 * static_cast<std::uint64_t>(thread_index()); i < work.floats; i += stride) {
    sum += square(four_at(work.grads, i));
  }
  add_blocks(sum, work.partials, work.counter, [&](double total) { *work.norm = sqrt(total); });
}

/// One thread per float.
__global__ void update_statistics(const __grid_constant__ Running work) {
  const std::uint64_t i = work.segments.items[0].begin + static_cast<std::uint64_t>(thread_index());
  if (i >= work.segments.items[work.segments.count - 1].end || !isfinite(*work.loss_sum)) return;
  if (work.gradient_norm != nullptr && !isfinite(*work.gradient_norm)) return;
  const auto ema_share =
      static_cast<float>(1.0 - optim::ema_decay(work.average, *work.step, work.average_steps));
  const float share = segment_of(work.segments, i).rate_factor;
  const float now = optim::updated_running(work.params[i], work.statistics[i - work.begin], share);
  work.params[i] = now;
  work.ema[i] = optim::updated_ema(work.ema[i], now, ema_share);
}

/// As many blocks as an update. Thread 0 computes the pull, which takes a power in double. A template, because nvcc takes a
/// constexpr function that calls a device function for a host function where no template calls it.
template <class Math>
__global__ void __launch_bounds__(kThreads) pull_all(const __grid_constant__ LookaheadPull work) {
  __shared__ optim::Pull pull;
  __shared__ float ema_share;
  if (!isfinite(*work.loss_sum) || (work.gradient_norm != nullptr && !isfinite(*work.gradient_norm))) return;
  if (threadIdx.x == 0) {
    pull = optim::pull_after(work.rule, *work.step, Math{});
    ema_share = static_cast<float>(1.0 - optim::ema_decay(work.average, *work.step));
  }
  __syncthreads();
  if (!pull.begins && !pull.pulls) return;
  const std::uint64_t stride = std::uint64_t{kThreads} * kUpdateBlocks;
  for (auto i = static_cast<std::uint64_t>(thread_index()); i < work.floats; i += stride)
    optim::apply(pull, ema_share, work.params[i], work.slow[i], work.ema[i]);
}

__device__ bool applies(const MatrixMove& work) {
  return work.average_steps == 0 ||
         (isfinite(*work.loss_sum) && (work.gradient_norm == nullptr || isfinite(*work.gradient_norm)));
}

__global__ void __launch_bounds__(kThreads)
    gather_directions(const __grid_constant__ MatrixMove work, float* x) {
  const bool clips = work.gradient_norm != nullptr, apply = applies(work);
  const float clip = clips ? optim::clip_factor(work.clip_norm, *work.gradient_norm) : 1.0f;
  const float momentum = static_cast<float>(work.optimizer.muon_momentum);
  double sum = 0.0;
  const std::int64_t stride = std::int64_t{kThreads} * kUpdateBlocks;
  for (std::int64_t i = thread_index(); apply && i < work.values; i += stride) {
    const std::uint32_t at = work.places[i];
    const float grad = clips ? clip * work.grads[at] : work.grads[at];
    const float s = momentum * work.momenta[at] + grad;
    work.momenta[at] = s;
    const float direction = grad + momentum * s;
    x[i] = direction;
    sum += static_cast<double>(direction) * direction;
  }
  add_blocks(sum, work.partials, work.counter, [&](double total) { *work.sum = total; });
}

/// One thread per element, as the next three.
__global__ void divide_by_norm(const __grid_constant__ MatrixMove work, float* x) {
  const std::int64_t i = thread_index();
  if (i < work.values) x[i] *= static_cast<float>(1.0 / (sqrt(*work.sum) + optim::NewtonSchulz::kEps));
}

__global__ void combine_powers(std::int64_t n, const float* a, float* aa) {
  const std::int64_t i = thread_index();
  if (i >= n * n) return;
  const float sum = optim::NewtonSchulz::kB * a[i] + optim::NewtonSchulz::kC * aa[i];
  aa[i] = i / n == i % n ? sum + optim::NewtonSchulz::kA : sum;
}

__global__ void scatter_moves(const __grid_constant__ MatrixMove work, const float* x) {
  const std::int64_t i = thread_index();
  if (i < work.values) work.moves[work.places[i]] = work.scale * x[i] + 0.0f;
}

__global__ void scale_weights(const __grid_constant__ MatrixMove work) {
  const std::int64_t i = thread_index();
  if (i >= work.floats || *work.sum == 0.0) return;
  if (!optim::normalizes(work.optimizer, *work.step) || !applies(work)) return;
  work.params[i] *= static_cast<float>(sqrt(static_cast<double>(work.out)) / sqrt(*work.sum));
}

__global__ void __launch_bounds__(kThreads) sum_weight_squares(const __grid_constant__ MatrixMove work) {
  double sum = 0.0;
  const std::int64_t stride = std::int64_t{4} * kThreads * kUpdateBlocks;
  for (std::int64_t i = 4 * thread_index(); i < work.floats; i += stride)
    sum += square(four_at(work.params, static_cast<std::uint64_t>(i)));
  add_blocks(sum, work.partials, work.counter, [&](double total) { *work.sum = total; });
}

/// One thread per element up to kUpdateBlocks blocks; their threads take further elements in turn. Blocks without an
/// element would only add 0 to the sums.
Grid update_grid(std::int64_t elements) {
  return {std::clamp(blocks_for(elements), 1u, unsigned{kUpdateBlocks}), kThreads};
}

std::int64_t floats_of(const Segments& segments) {
  return static_cast<std::int64_t>(segments.items[segments.count - 1].end - segments.items[0].begin);
}

}  // namespace

void gather_matrix(cudaStream_t stream, const MatrixMove& work, float* x) {
  launch("gather matrix", stream, update_grid(work.values), gather_directions, work, x);
  launch("divide by norm", stream, grid_for(work.values), divide_by_norm, work, x);
}

void muon_polynomial(cudaStream_t stream, std::int64_t n, const float* a, float* aa) {
  launch("muon polynomial", stream, grid_for(n * n), combine_powers, n, a, aa);
}

void scatter_matrix(cudaStream_t stream, const MatrixMove& work, const float* x) {
  launch("scatter matrix", stream, grid_for(work.values), scatter_moves, work, x);
}

void normalize_matrix(cudaStream_t stream, const MatrixMove& work) {
  launch("sum of weight squares", stream, update_grid(work.floats / 4), sum_weight_squares, work);
  launch("scale weights", stream, grid_for(work.floats), scale_weights, work);
}

void update(cudaStream_t stream, const Update& work) {
  optim::with_rule(work.optimizer.kind, [&]<class Rule>(Rule) {
    const auto kernel = work.gradient_norm != nullptr ? update_all<Rule, true> : update_all<Rule, false>;
    launch("update", stream, update_grid(floats_of(work.segments) / 4), kernel, work);
  });
}

void gradient_norm(cudaStream_t stream, const GradientNorm& work) {
  launch("gradient norm", stream, update_grid(static_cast<std::int64_t>(work.floats / 4)), norm_of_all, work);
}

void pull(cudaStream_t stream, const LookaheadPull& work) {
  launch("lookahead", stream, update_grid(static_cast<std::int64_t>(work.floats)), pull_all<DeviceMath>,
         work);
}

void update_running(cudaStream_t stream, const Running& work) {
  launch("running statistics", stream, grid_for(floats_of(work.segments)), update_statistics, work);
}

}  // namespace cifar_mpi::cuda
