#include "cuda/runner.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "cuda/control.hpp"
#include "cuda/delay_kernel.hpp"
#include "cuda/device/gpu.hpp"
#include "cuda/lane.hpp"

/// What the serial runner says of its tasks' time.
namespace cifar_mpi::cuda::testing {
namespace {

using engine::kCompute;

constexpr double kHeldSeconds = 1e-9 * static_cast<double>(kDelayNanoseconds);

class CudaRunner : public GpuTest {};

/// A task whose kernel notes the time since the one before it.
struct Stopwatch {
  explicit Stopwatch(Bench& device) : bench(device) {
    engine::StepProgram program("stopwatch");
    program.run(kCompute, {"begin",
                           {},
                           {engine::bytes_of(control, 32)},
                           [this](engine::Lane& lane) {
                             begin_step(stream_of(lane), {control, 32, 0, nullptr, facts});
                           },
                           {}});
    note = program.run(kCompute, {"note",
                                  {engine::bytes_of(control, 32)},
                                  {},
                                  [this](engine::Lane& lane) { note_compute_time(stream_of(lane), facts); },
                                  {}});
    program.finalize();
    runner = make_runner(bench.device, std::move(program), engine::RunnerKind::serial, {});
  }

  /// Seconds on the device's clock between the two.
  double once() {
    runner->replay();
    runner->finish();
    return 1e-3 * static_cast<double>(bench.download(facts, 1)[0].compute_ms);
  }

  Bench& bench;
  float* control = bench.upload(std::vector<float>(32, 0.0f));
  engine::RankFacts* facts = bench.upload(std::vector<engine::RankFacts>(1));
  engine::TaskId note = 0;
  std::unique_ptr<engine::Runner> runner;
};

TEST_F(CudaRunner, HoldsEachTaskBackUntilItIsEnqueuedAndLeavesThatOutOfItsTime) {
  Bench bench;
  Stopwatch watch(bench);
  double shortest = 1.0, told_before = 0.0;
  for (int i = 0; i < 100; ++i) {
    // the clock may move in steps of 1 µs, and the time is kept in seconds since 1970, to 0.24 µs
    EXPECT_GE(watch.once(), kHeldSeconds - 2e-6);
    const double told = watch.runner->task_seconds()[static_cast<std::size_t>(watch.note)];
    EXPECT_GT(told, told_before);
    shortest = std::min(shortest, told - std::exchange(told_before, told));
  }
  EXPECT_LT(shortest, kHeldSeconds);
}

TEST_F(CudaRunner, HoldsAStreamForAFewMicroseconds) {
  Bench bench;
  const Event begin = make_event(true), end = make_event(true);
  for (int i = 0; i < 3; ++i) {
    check(cudaEventRecord(begin.get(), bench.stream), "a test");
    enqueue_delay_kernel(bench.stream);
    check(cudaEventRecord(end.get(), bench.stream), "a test");
    bench.sync();
    float milliseconds = 0.0f;
    check(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), "a test");
    EXPECT_GE(1e-3 * static_cast<double>(milliseconds), kHeldSeconds - 2e-6);
    EXPECT_LT(milliseconds, 1000.0f);
  }
}

}  // namespace
}  // namespace cifar_mpi::cuda::testing
