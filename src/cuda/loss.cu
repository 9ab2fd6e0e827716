#include "cuda/launch.cuh"
#include "cuda/loss.hpp"

namespace cifar_mpi::cuda {
namespace {

/// One block does the whole batch, so that the order of the sums is that of its threads. A constant, because
/// it affects bits.
constexpr int kLossThreads = 1024;

struct Figures {
  double loss = 0.0;
  int correct = 0;
  int counted = 0;
};

/// The sum over the threads of the block.
__device__ Figures add_threads(Figures mine) {
  __shared__ Figures all[kLossThreads];
  const int me = static_cast<int>(threadIdx.x);
  all[me] = mine;
  __syncthreads();
  for (int half = kLossThreads / 2; half > 0; half /= 2) {
    if (me < half) {
      all[me].loss += all[me + half].loss;
      all[me].correct += all[me + half].correct;
      all[me].counted += all[me + half].counted;
    }
    __syncthreads();
  }
  return all[0];
}

template <class L, class Write>
__device__ Figures losses(const LossInput& input, const LossRule& rule, std::uint8_t* predictions,
                          Write write) {
  const L* const logits = static_cast<const L*>(input.logits);
  Figures figures;
  for (int i = static_cast<int>(threadIdx.x); i < input.batch; i += kLossThreads) {
    const std::int64_t row = static_cast<std::int64_t>(i) * input.classes;
    const int label = input.labels[i];
    const SampleLoss sample = sample_loss(
        input.classes, label, rule, [&](int j) { return to_float(logits[row + j]); },
        [&](int j, float grad) { write(row + j, grad); }, DeviceMath{});
    figures.loss += sample.loss;
    figures.correct += sample.predicted == label ? 1 : 0;
    figures.counted += sample.counts ? 1 : 0;
    if (predictions != nullptr) predictions[i] = static_cast<std::uint8_t>(sample.predicted);
  }
  return add_threads(figures);
}

template <class L, class G>
__global__ void __launch_bounds__(kLossThreads)
    train(LossInput input, LossRule rule, G* __restrict__ grad_logits, float* __restrict__ sums) {
  const Figures figures = losses<L>(
      input, rule, nullptr, [&](std::int64_t i, float grad) { grad_logits[i] = from_float<G>(grad); });
  if (threadIdx.x != 0) return;
  sums[0] += static_cast<float>(figures.loss);
  sums[1] += static_cast<float>(figures.correct);
  sums[2] += static_cast<float>(figures.counted);
}

template <class L>
__global__ void __launch_bounds__(kLossThreads)
    evaluate(LossInput input, std::uint8_t* __restrict__ predictions, float* __restrict__ loss_sum) {
  const Figures figures = losses<L>(input, {}, predictions, [](std::int64_t, float) {});
  if (threadIdx.x == 0) *loss_sum = static_cast<float>(figures.loss);
}

}  // namespace

void train_loss(cudaStream_t stream, const LossInput& input, const LossRule& rule, ValueType grad_type,
                void* grad_logits, float* sums) {
  with_type(input.logit_type, [&]<class L>(L) {
    with_type(grad_type, [&]<class G>(G) {
      launch("loss", stream, {1, kLossThreads}, train<L, G>, input, rule, grad_logits, sums);
    });
  });
}

void evaluate_loss(cudaStream_t stream, const LossInput& input, std::uint8_t* predictions, float* loss_sum) {
  with_type(input.logit_type, [&]<class L>(L) {
    launch("evaluation loss", stream, {1, kLossThreads}, evaluate<L>, input, predictions, loss_sum);
  });
}

}  // namespace cifar_mpi::cuda
