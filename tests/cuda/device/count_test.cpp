#include "cuda/count.hpp"

#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/engine/recorder.hpp"
#include "cuda/device/gpu.hpp"
#include "cuda/device_runner.hpp"
#include "cuda/lane.hpp"
#include "cuda/step_tasks.hpp"
#include "support/naive_counts.hpp"

/// Histograms counted on the device.
namespace cifar_mpi::cuda::testing {
namespace {

using engine::ValueCounts;

class CudaCount : public GpuTest {};

std::vector<ValueCounts> counted(Bench& bench, ValueType type, const std::vector<CountedTensor>& tensors,
                                 const ValueCounts* counts) {
  const auto held = static_cast<int>(std::min<std::size_t>(tensors.size(), kMostCounted));
  auto* const scratch = bench.take<std::byte>(count_scratch_bytes(held));
  engine::StepProgram program("count");
  program.run(engine::kCompute, plan_count("count", type, tensors, scratch));
  program.finalize();
  const auto runner = make_runner(bench.device, std::move(program), engine::RunnerKind::lanes, {});
  runner->replay(2);  // the second is not disturbed by results of the first
  runner->finish();
  return bench.download(counts, tensors.size());
}

/// More tensors, of many lengths, than fit one launch.
TEST_F(CudaCount, FindsWhatANaiveLoopFindsInBothTypes) {
  Bench bench;
  std::vector<std::vector<float>> samples = test::value_samples();
  const std::vector<float> many = samples.back();
  for (std::size_t length = 1; samples.size() < kMostCounted + 5; length = length * 3 % 8191 + 1)
    samples.emplace_back(many.begin(), many.begin() + static_cast<std::ptrdiff_t>(length));
  for (const ValueType type : {ValueType::fp32, ValueType::bf16}) {
    ValueCounts* const counts = bench.take<ValueCounts>(samples.size());
    std::vector<CountedTensor> tensors;
    std::vector<std::vector<float>> seen;
    for (const std::vector<float>& values : samples) {
      std::vector<std::uint16_t> narrow;
      std::vector<float> wide;
      for (const float value : values) {
        // the upper half, so that non-finite and small values remain such
        std::uint32_t bits = 0;
        std::memcpy(&bits, &value, sizeof bits);
        narrow.push_back(static_cast<std::uint16_t>(bits >> 16));
        wide.push_back(static_cast<float>(from_bf16(narrow.back())));
      }
      const void* const place =
          type == ValueType::fp32 ? static_cast<const void*>(bench.upload(values)) : bench.upload(narrow);
      tensors.push_back({place, values.size(), counts + tensors.size()});
      seen.push_back(type == ValueType::fp32 ? values : wide);
    }
    const std::vector<ValueCounts> found = counted(bench, type, tensors, counts);
    for (std::size_t t = 0; t < seen.size(); ++t) {
      SCOPED_TRACE(concat("tensor ", t, " of ", seen[t].size(), " values, ", name_of(type)));
      test::expect_counts(found[t], seen[t]);
    }
  }
}

TEST_F(CudaCount, LeavesOutThePaddingOfRows) {
  Bench bench;
  std::vector<float> padded, values;
  for (int i = 0; i < 37 * 16; ++i) {
    const bool counts = i % 16 < 10;
    padded.push_back(counts ? noise(static_cast<std::uint64_t>(i), 3) : 1000.0f);
    if (counts) values.push_back(padded.back());
  }
  ValueCounts* const counts = bench.take<ValueCounts>(1);
  const auto found =
      counted(bench, ValueType::fp32, {{bench.upload(padded), values.size(), counts, 10, 16}}, counts);
  test::expect_counts(found[0], values);
}

TEST_F(CudaCount, KeepsImagesAsFp32) {
  Bench bench;
  const std::vector<std::uint16_t> narrow{to_bf16(1.5), to_bf16(-2.0), to_bf16(0.25), to_bf16(9.0)};
  float* const dst = bench.take<float>(3);
  to_fp32(bench.stream, ValueType::bf16, bench.upload(narrow), dst, 3);
  EXPECT_EQ(bench.download(dst, 3), (std::vector{1.5f, -2.0f, 0.25f}));
  to_fp32(bench.stream, ValueType::fp32, bench.upload(std::vector{4.0f, 5.0f}), dst, 2);
  EXPECT_EQ(bench.download(dst, 3), (std::vector{4.0f, 5.0f, 0.25f}));
}

/// With graphs too; such replays have a graph of their own.
TEST_F(CudaCount, RunsObserversOnlyInReplaysThatAreObserved) {
  for (const auto kind : {engine::RunnerKind::serial, engine::RunnerKind::lanes, engine::RunnerKind::graph}) {
    Bench bench;
    float* const values = bench.upload(std::vector{1.0f, 2.0f});
    float* const ordinary = bench.upload(std::vector{0.0f});
    float* const observed = bench.upload(std::vector{0.0f});
    float* const one = bench.upload(std::vector{1.0f});
    engine::StepProgram program("observed");
    program.run(engine::kCompute, plan_sum("work", {ordinary, ordinary, one, 1}));
    engine::Task observer = plan_sum("look", {observed, observed, values + 1, 1});
    observer.observer = true;
    program.run(engine::kCompute, std::move(observer));
    program.finalize();
    const auto runner = make_runner(bench.device, std::move(program), kind, {});
    float wanted = 0.0f;
    for (const bool look : {false, false, true, true, true, false, true, false}) {
      runner->observe({.look = look});
      runner->replay();
      if (look) wanted += 2.0f;
    }
    engine::Recorder recorder(2, 10);  // a task that has not run has no times
    for (const bool look : {false, true}) {
      runner->observe({&recorder, look});
      runner->replay();
      if (look) wanted += 2.0f;
    }
    runner->observe({});
    ASSERT_EQ(recorder.replays(), 2u);
    EXPECT_EQ(recorder[0].slices.size(), 1u);
    EXPECT_EQ(recorder[1].slices.size(), 2u);
    runner->replay(1);
    runner->finish();
    EXPECT_EQ(bench.download(ordinary, 1)[0], 11.0f) << to_string(kind);
    EXPECT_EQ(bench.download(observed, 1)[0], wanted) << to_string(kind);
  }
}

}  // namespace
}  // namespace cifar_mpi::cuda::testing
