#include <cstdint>
#include <limits>
#include <vector>

#include "cuda/device/gpu.hpp"
#include "cuda/optimizer.hpp"

/// The update of more floats than the threads take at once.
namespace cifar_mpi::cuda::testing {
namespace {

class CudaUpdate : public GpuTest {};

TEST_F(CudaUpdate, TakesEveryFloatOnceAndNoneWhenTheLossIsNotFinite) {
  Bench bench;
  constexpr std::uint64_t kAtOnce = std::uint64_t{4} * 256 * kUpdateBlocks, kBegin = 16;
  constexpr std::uint64_t kEnd = kBegin + 2 * kAtOnce + 4 * 257;  // a third round for a few threads
  Update work;
  work.segments.items[work.segments.count++] = {kBegin, kBegin + 64, 0.0f};
  work.segments.items[work.segments.count++] = {kBegin + 64, kAtOnce + 4, 0.5f, 0.5f};
  work.segments.items[work.segments.count++] = {kAtOnce + 4, kEnd, 0.25f};
  work.rule.scaled_rate = 0.5;
  work.ema_decay = 0.75;
  work.step = bench.upload(std::vector<std::uint64_t>{1000});
  work.partials = bench.take<double>(kUpdateBlocks);
  work.counter = bench.counters(1);
  work.adds = true;
  std::vector<float> params, grads, ema;
  for (std::uint64_t i = 0; i < kEnd + 16; ++i) {  // so that the results are exact
    params.push_back(static_cast<float>(i * 7 % 33) / 16.0f - 1.0f);
    grads.push_back(static_cast<float>(i * 5 % 17) / 16.0f);
    ema.push_back(static_cast<float>(i * 3 % 65) / 16.0f);
  }
  for (const bool finite : {true, false}) {
    work.loss_sum = bench.upload(std::vector{finite ? 3.0f : std::numeric_limits<float>::infinity()});
    work.decay_sum = bench.upload(std::vector{1.0});
    work.params = bench.upload(params);
    work.grads = bench.upload(grads);
    work.ema = bench.upload(ema);
    update(bench.stream, work);
    const std::vector<float> new_params = bench.download(work.params, params.size());
    const std::vector<float> new_ema = bench.download(work.ema, ema.size());
    double decay_sum = 1.0;
    for (std::uint64_t i = 0; i < params.size(); ++i) {
      const bool inside = i >= kBegin && i < kEnd;
      const Segment segment = segment_of(work.segments, i);
      const float decay = inside ? segment.decay : 0.0f;
      decay_sum += static_cast<double>(decay) * 0.5 * static_cast<double>(params[i] * params[i]);
      const bool changes = inside && finite;
      const float w =
          changes ? params[i] - 0.5f * segment.rate_factor * (grads[i] + decay * params[i]) : params[i];
      ASSERT_EQ(new_params[i], w) << i;
      ASSERT_EQ(new_ema[i], changes ? ema[i] + 0.25f * (w - ema[i]) : ema[i]) << i;
    }
    EXPECT_EQ(bench.download(work.decay_sum, 1)[0], decay_sum);
  }
}

}  // namespace
}  // namespace cifar_mpi::cuda::testing
