#include <algorithm>
#include <utility>
#include <vector>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/engine/recorder.hpp"
#include "cuda/control.hpp"
#include "cuda/device/gpu.hpp"
#include "cuda/device_runner.hpp"
#include "cuda/lane.hpp"

/// The times of tasks that runners report.
namespace cifar_mpi::cuda::testing {
namespace {

using engine::kCompute;

constexpr double kHeldSeconds = 1e-9 * static_cast<double>(kDelayNanoseconds);

class CudaRunner : public GpuTest {};

/// A task whose kernel stores the time since the previous one.
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

/// Each task holds its stream for kHeldSeconds: two on the compute lane, between them one beside them.
engine::StepProgram holding_program() {
  const auto hold = [](const char* name) {
    return engine::Task{name, {}, {}, [](engine::Lane& lane) { enqueue_delay_kernel(stream_of(lane)); }, {}};
  };
  engine::StepProgram program("hold");
  program.run(kCompute, hold("first"));
  program.wait(engine::kFirstSide, program.set(kCompute));
  program.run(engine::kFirstSide, hold("beside"));
  program.run(kCompute, hold("last"));
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
  constexpr auto kHeld = static_cast<std::int64_t>(kDelayNanoseconds) - 2'000;
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
