#include "cuda/launch.cuh"
#include "cuda/loss.hpp"

namespace cifar_mpi::cuda {
namespace {

/// Sums over samples; they are integers and exact up to 2^24.
struct Figures {
  float loss = 0.0f;
  float correct = 0.0f;
  float counted = 0.0f;
};

__device__ void add(Figures& sum, const Figures& more) {
  sum.loss += more.loss;
  sum.correct += more.correct;
  sum.counted += more.counted;
}

/// The sum over the threads of the block.
__device__ Figures add_threads(const Figures& mine) {
  __shared__ Figures all[kLossSamples];
  const int me = static_cast<int>(threadIdx.x);
  all[me] = mine;
  __syncthreads();
  for (int half = kLossSamples / 2; half > 0; half /= 2) {
    if (me < half) add(all[me], all[me + half]);
    __syncthreads();
  }
  const Figures sum = all[0];
  __syncthreads();
  return sum;
}

/// One sample per thread. Calls `finish` in one thread of the grid with the sum over the batch.
template <class L, class Write, class Finish>
__device__ void losses(const LossInput& input, const LossRule& rule, std::uint8_t* predictions, Write write,
                       Finish finish) {
  const int me = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x);
  const int i = block * kLossSamples + me;
  Figures mine;
  if (i < input.batch) {
    const std::int64_t row = static_cast<std::int64_t>(i) * input.columns;
    const L* const logits = static_cast<const L*>(input.logits) + row;
    const int label = input.labels[i];
    const SampleLoss sample = sample_loss(
        input.classes, label, rule, [&](int j) { return to_float(logits[j]); },
        [&](int j, float grad) { write(row + j, grad); }, DeviceMath{});
    for (int j = input.classes; j < input.columns; ++j) write(row + j, 0.0f);
    mine = {sample.loss, sample.predicted == label ? 1.0f : 0.0f, sample.counts ? 1.0f : 0.0f};
    if (predictions != nullptr) predictions[i] = static_cast<std::uint8_t>(sample.predicted);
  }
  const int blocks = static_cast<int>(gridDim.x);
  Figures sum = add_threads(mine);
  if (blocks > 1) {
    float* const partials = input.partials;
    if (me == 0) {
      partials[block] = sum.loss;
      partials[blocks + block] = sum.correct;
      partials[2 * blocks + block] = sum.counted;
    }
    if (!is_last_block(input.counter, gridDim.x)) return;
    mine = {};
    for (int b = me; b < blocks; b += kLossSamples) {
      add(mine, {__ldcg(partials + b), __ldcg(partials + blocks + b), __ldcg(partials + 2 * blocks + b)});
    }
    sum = add_threads(mine);
  }
  if (me == 0) finish(sum);
}

template <class L, class G>
__global__ void __launch_bounds__(kLossSamples)
    train(LossInput input, LossRule rule, G* __restrict__ grad_logits, float* __restrict__ sums) {
  losses<L>(
      input, rule, nullptr, [&](std::int64_t i, float grad) { grad_logits[i] = from_float<G>(grad); },
      [&](const Figures& sum) {
        sums[0] += sum.loss;
        sums[1] += sum.correct;
        sums[2] += sum.counted;
      });
}

template <class L>
__global__ void __launch_bounds__(kLossSamples)
    evaluate(LossInput input, std::uint8_t* __restrict__ predictions, float* __restrict__ loss_sum,
             float* __restrict__ logits) {
  const int i = static_cast<int>(blockIdx.x) * kLossSamples + static_cast<int>(threadIdx.x);
  if (logits != nullptr && i < input.batch) {
    const L* const row = static_cast<const L*>(input.logits) + static_cast<std::int64_t>(i) * input.columns;
    for (int j = 0; j < input.classes; ++j)
      logits[static_cast<std::int64_t>(i) * input.classes + j] = to_float(row[j]);
  }
  losses<L>(
      input, {}, predictions, [](std::int64_t, float) {}, [&](const Figures& sum) { *loss_sum = sum.loss; });
}

Grid grid_of(const LossInput& input) {
  return {static_cast<unsigned>(loss_blocks(input.batch)), kLossSamples};
}

}  // namespace

void train_loss(cudaStream_t stream, const LossInput& input, const LossRule& rule, ValueType grad_type,
                void* grad_logits, float* sums) {
  with_type(input.logit_type, [&]<class L>(L) {
    with_type(grad_type, [&]<class G>(G) {
      launch("loss", stream, grid_of(input), train<L, G>, input, rule, grad_logits, sums);
    });
  });
}

void evaluate_loss(cudaStream_t stream, const LossInput& input, std::uint8_t* predictions, float* loss_sum,
                   float* logits) {
  with_type(input.logit_type, [&]<class L>(L) {
    launch("evaluation loss", stream, grid_of(input), evaluate<L>, input, predictions, loss_sum, logits);
  });
}

}  // namespace cifar_mpi::cuda
