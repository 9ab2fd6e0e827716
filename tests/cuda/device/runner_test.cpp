#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/engine/recorder.hpp"
#include "cuda/control.hpp"
#include "cuda/device/gpu.hpp"
#include "cuda/device_runner.hpp"
#include "cuda/host_link.hpp"
#include "cuda/lane.hpp"

/// The times of tasks that runners report.
namespace cifar_mpi::cuda::testing {
namespace {

using engine::kCompute;

constexpr std::uint64_t kHeldNanoseconds = 25'000;
constexpr double kHeldSeconds = 1e-9 * static_cast<double>(kHeldNanoseconds);

void hold(cudaStream_t stream) { hold_stream(stream, {nullptr, 0, kHeldNanoseconds}); }

class CudaRunner : public GpuTest {};

/// cuDNN's host takes far longer for a convolution than for other kernels.
TEST_F(CudaRunner, LeavesTheTimeOfASlowHostOutOfATask) {
  Bench bench;
  engine::StepProgram program("slow to enqueue");
  program.run(kCompute, {"slow",
                         {},
                         {},
                         [](engine::Lane& lane) {
                           hold(stream_of(lane));
                           std::this_thread::sleep_for(std::chrono::microseconds(500));
                           hold(stream_of(lane));
                         },
                         {}});
  program.finalize();
  const auto runner = make_runner(bench.device, std::move(program), engine::RunnerKind::serial, {});
  double before = 0.0, shortest = 1.0;
  for (int i = 0; i < 10 || (i < 5000 && shortest >= 300e-6); ++i) {  // beside other work most are long
    runner->replay();
    runner->finish();
    const double all = runner->task_seconds()[0];
    shortest = std::min(shortest, all - std::exchange(before, all));
  }
  EXPECT_GE(shortest, 2 * kHeldSeconds - 4e-6);
  EXPECT_LT(shortest, 300e-6);
}

TEST_F(CudaRunner, HoldsAStreamForAFewMicroseconds) {
  Bench bench;
  const Event begin = make_event(true), end = make_event(true);
  for (int i = 0; i < 3; ++i) {
    check(cudaEventRecord(begin.get(), bench.stream), "a test");
    hold(bench.stream);
    check(cudaEventRecord(end.get(), bench.stream), "a test");
    bench.sync();
    float milliseconds = 0.0f;
    check(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), "a test");
    EXPECT_GE(1e-3 * static_cast<double>(milliseconds), kHeldSeconds - 2e-6);
    EXPECT_LT(milliseconds, 60'000.0f);
  }
}

TEST_F(CudaRunner, OpensAGateByItselfAfterTwentyMilliseconds) {
  Bench bench;
  Gate gate;
  const Event begin = make_event(true), end = make_event(true);
  for (const std::size_t tasks : {2, 5000}) {
    check(cudaEventRecord(begin.get(), bench.stream), "a test");
    gate.close(bench.stream, tasks);
    check(cudaEventRecord(end.get(), bench.stream), "a test");
    bench.sync();
    float milliseconds = 0.0f;
    check(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), "a test");
    EXPECT_GE(milliseconds, tasks == 2 ? 1.9f : 19.0f);
    EXPECT_LT(milliseconds, 2500.0f) << "of 5000 without the limit, beside other work";
  }
}

/// Each task holds its stream for kHeldSeconds: two on the compute lane, between them one beside them.
engine::StepProgram holding_program() {
  const auto holding = [](const char* name) {
    return engine::Task{name, {}, {}, [](engine::Lane& lane) { hold(stream_of(lane)); }, {}};
  };
  engine::StepProgram program("hold");
  program.run(kCompute, holding("first"));
  program.wait(engine::kFirstSide, program.set(kCompute));
  program.run(engine::kFirstSide, holding("beside"));
  program.run(kCompute, holding("last"));
  program.wait(kCompute, program.set(engine::kFirstSide));
  program.finalize();
  return program;
}

/// The program has no host task; an evaluation is many such launches.
TEST_F(CudaRunner, ShowsThatALaunchIsDone) {
  for (const engine::RunnerKind kind :
       {engine::RunnerKind::serial, engine::RunnerKind::lanes, engine::RunnerKind::graph}) {
    Bench bench;
    const auto runner = make_runner(bench.device, holding_program(), kind, {});
    engine::ProgressCounter counter;
    runner->show_in(counter);
    for (int launch = 0; launch < 3; ++launch) {
      const std::uint64_t before = counter.snapshot().count;
      runner->replay();
      runner->finish();
      EXPECT_GT(counter.snapshot().count, before);
    }
  }
}

TEST_F(CudaRunner, RecordsWhenTheTasksOfAllLanesRan) {
  constexpr auto kHeld = static_cast<std::int64_t>(kHeldNanoseconds) - 2'000;
  constexpr std::int64_t kClock = 100'000;  // the error of the device's clock if the host is interrupted
  for (const engine::RunnerKind kind :
       {engine::RunnerKind::serial, engine::RunnerKind::lanes, engine::RunnerKind::graph}) {
    Bench bench;
    const auto runner = make_runner(bench.device, holding_program(), kind, {});
    EXPECT_EQ(runner->replays_graphs(), kind == engine::RunnerKind::graph);
    runner->replay(2);
    runner->replay(2);
    engine::Recorder recorder(3, 100);
    const std::int64_t before = steady_nanoseconds();
    runner->observe({&recorder});
    runner->replay(2);
    runner->replay();
    runner->observe({});
    const std::int64_t after = steady_nanoseconds();
    EXPECT_EQ(runner->finished(), 7u);
    ASSERT_EQ(recorder.replays(), 3u);
    std::int64_t last_end = before - kClock;
    for (std::size_t i = 0; i < 3; ++i) {
      const engine::Recorder::Replay replay = recorder[i];
      ASSERT_EQ(replay.slices.size(), 3u);
      std::int64_t begins[3] = {}, ends[3] = {}, last_begin = replay.begin_ns;
      for (const engine::Recorder::Slice& slice : replay.slices) {
        EXPECT_GE(slice.begin_ns, last_begin) << "in the order of their beginnings";
        last_begin = slice.begin_ns;
        begins[slice.task] = slice.begin_ns;
        ends[slice.task] = slice.end_ns;
        EXPECT_GE(slice.end_ns - slice.begin_ns, kHeld);
        EXPECT_LE(slice.end_ns, replay.end_ns);
      }
      EXPECT_GE(begins[1], ends[0] - 2'000);
      EXPECT_GE(begins[2], ends[0] - 2'000);
      EXPECT_GE(replay.begin_ns, last_end - 2'000);
      last_end = replay.end_ns;
      if (i > 0) {
        EXPECT_EQ(recorder[i - 1].end_ns, replay.begin_ns);
      }
    }
    EXPECT_LE(last_end, after + kClock);
    runner->replay(2);
    runner->finish();
    EXPECT_EQ(runner->finished(), 9u);
    EXPECT_EQ(recorder.replays(), 3u);
  }
}

}  // namespace
}  // namespace cifar_mpi::cuda::testing
