#include <functional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/engine/recorder.hpp"
#include "cuda/device/gpu.hpp"
#include "cuda/device_runner.hpp"
#include "cuda/host_link.hpp"
#include "cuda/lane.hpp"
#include "cuda/step_tasks.hpp"

/// Programs with host tasks among those of the device.
namespace cifar_mpi::cuda::testing {
namespace {

using engine::bytes_of;
using engine::kComm;
using engine::kCompute;
using engine::RunnerKind;

constexpr RunnerKind kKinds[] = {RunnerKind::serial, RunnerKind::lanes, RunnerKind::graph, RunnerKind::audit};
constexpr std::size_t kLaneFloats = 4096;

/// A step as on a worker: the device makes values, the host doubles them, and the device adds the result.
/// Meanwhile the compute lane continues.
struct Exchange {
  Bench bench;
  Buffer sent_memory = allocate_pinned(kLaneFloats * sizeof(float));
  Buffer got_memory = allocate_pinned(kLaneFloats * sizeof(float));
  float* sent = sent_memory.as<float>();
  float* got = got_memory.as<float>();
  float* ones = bench.upload(std::vector<float>(kLaneFloats, 1.0f));
  float* value = bench.upload(std::vector<float>(kLaneFloats, 3.0f));
  float* answer = bench.upload(std::vector<float>(kLaneFloats, 0.0f));
  float* beside = bench.upload(std::vector<float>(kLaneFloats, 0.0f));
  std::uint64_t* counter = bench.upload(std::vector<std::uint64_t>{41});
  int polls = 0;
  std::function<bool()> may_end = [] { return true; };

  engine::StepProgram program() {
    engine::StepProgram program("exchange");
    program.run(kCompute, plan_sum("make", {value, value, ones, kLaneFloats}));
    program.wait(kComm, program.set(kCompute));
    program.run(kCompute, plan_sum("beside", {beside, beside, ones, kLaneFloats}));
    program.run(kComm, plan_copy("fetch", {{bytes(sent), bytes(value), kLaneFloats * sizeof(float)}}));
    engine::Task host{"host", {bytes_of(sent, kLaneFloats)}, {bytes_of(got, kLaneFloats)}, {}, {}};
    host.start = [this](engine::Lane&) { polls = 0; };
    host.poll = [this] {
      if (++polls < 3 || !may_end()) return false;
      for (std::size_t i = 0; i < kLaneFloats; ++i) got[i] = 2.0f * sent[i];
      return true;
    };
    program.run(kComm, std::move(host));
    program.run(kComm, plan_copy("deliver", {{bytes(answer), bytes(got), kLaneFloats * sizeof(float)}}));
    program.wait(kCompute, program.set(kComm));
    program.run(kCompute, plan_sum("take", {value, value, answer, kLaneFloats}));
    program.run(kCompute, plan_increment("count", counter));
    program.finalize();
    return program;
  }

  static std::byte* bytes(float* array) { return reinterpret_cast<std::byte*>(array); }
  std::vector<engine::Bytes> regions() const {
    return {bytes_of(value, kLaneFloats), bytes_of(answer, kLaneFloats), bytes_of(beside, kLaneFloats),
            bytes_of(counter, 1)};
  }
};

class CudaHostLanes : public GpuTest {};

TEST_F(CudaHostLanes, GivesTheHostWhatTheDeviceMadeAndTheDeviceWhatTheHostMade) {
  for (const RunnerKind kind : kKinds) {
    SCOPED_TRACE(to_string(kind));
    Exchange step;
    const auto runner = make_runner(step.bench.device, step.program(), kind, step.regions());
    EXPECT_FALSE(runner->replays_graphs());
    float expected = 3.0f;
    for (const int times : {1, 2, 1, 3}) {
      runner->replay(times);
      for (int i = 0; i < times; ++i) expected = 3.0f * (expected + 1.0f);
    }
    runner->finish();
    EXPECT_EQ(runner->finished(), 7u);
    EXPECT_EQ(step.bench.download(step.value, kLaneFloats), std::vector<float>(kLaneFloats, expected));
    EXPECT_EQ(step.bench.download(step.beside, kLaneFloats), std::vector<float>(kLaneFloats, 7.0f));
    EXPECT_EQ(step.bench.download(step.counter, 1)[0], 48u);
  }
}

/// Otherwise a host task that waits for other ranks would block the device.
TEST_F(CudaHostLanes, LetTheDeviceGoOnBesideATaskOfTheHost) {
  Exchange step;
  const Event done = make_event();
  bool enqueued = false;
  const double began = steady_seconds();
  step.may_end = [&] {
    if (steady_seconds() - began > 20.0) throw std::runtime_error("nothing runs beside it");
    return enqueued && cudaEventQuery(done.get()) == cudaSuccess;
  };
  auto program = step.program();
  engine::StepProgram noting(program.name());
  for (const engine::Instruction& line : program.instructions()) {
    if (line.op == engine::Op::set) noting.set(line.lane);
    if (line.op == engine::Op::wait) noting.wait(line.lane, line.target);
    if (line.op != engine::Op::run) continue;
    engine::Task task = program.tasks()[static_cast<std::size_t>(line.target)];
    if (task.name == "beside") {
      task.start = [&, start = task.start](engine::Lane& lane) {
        start(lane);
        check(cudaEventRecord(done.get(), stream_of(lane)), "a test");
        enqueued = true;
      };
    }
    noting.run(line.lane, std::move(task));
  }
  noting.finalize();
  const auto runner = make_runner(step.bench.device, std::move(noting), RunnerKind::lanes, {});
  runner->replay();
  runner->finish();
  EXPECT_EQ(step.bench.download(step.value, kLaneFloats), std::vector<float>(kLaneFloats, 12.0f));
}

TEST_F(CudaHostLanes, MoveAllLanesOnWhileTheHostWaitsInOne) {
  Bench bench;
  bool other_done = false;
  int polls = 0;
  engine::StepProgram program("two");
  program.wait(kComm, program.set(kCompute));
  program.wait(engine::kFirstSide, program.set(kCompute));
  engine::Task one{"one",
                   {},
                   {},
                   [](engine::Lane&) {},
                   [&] {
                     if (++polls == 100'000) throw std::runtime_error("the other makes no progress");
                     return other_done;
                   }};
  engine::Task other{"other", {}, {}, [](engine::Lane&) {}, [&] { return other_done = polls > 2; }};
  program.run(kComm, std::move(one));
  program.run(engine::kFirstSide, std::move(other));
  program.wait(kCompute, program.set(kComm));
  program.wait(kCompute, program.set(engine::kFirstSide));
  program.finalize();
  const auto runner = make_runner(bench.device, std::move(program), RunnerKind::lanes, {});
  EXPECT_NO_THROW(runner->replay());
  runner->finish();
}

TEST_F(CudaHostLanes, ShowTheTaskOfTheHostWhileItIsUnderWay) {
  for (const RunnerKind kind : kKinds) {
    Exchange step;
    engine::ProgressCounter counter;
    std::vector<engine::TaskId> shown;
    step.may_end = [&] {
      shown.push_back(counter.snapshot().task);
      return true;
    };
    const auto runner = make_runner(step.bench.device, step.program(), kind, step.regions());
    runner->show_in(counter);
    runner->replay();
    ASSERT_EQ(shown.size(), 1u);
    ASSERT_GE(shown[0], 0);
    EXPECT_EQ(runner->program().tasks()[static_cast<std::size_t>(shown[0])].name, "host");
    EXPECT_EQ(counter.snapshot().task, engine::ProgressCounter::kNobody);
    EXPECT_EQ(counter.snapshot().count, 2u) << "begun and ended";
    runner->finish();
  }
}

TEST_F(CudaHostLanes, RecordTheTasksOfBoth) {
  for (const RunnerKind kind : {RunnerKind::serial, RunnerKind::lanes}) {
    Exchange step;
    const auto runner = make_runner(step.bench.device, step.program(), kind, {});
    runner->replay();
    engine::Recorder recorder(2, 100);
    runner->observe({&recorder});
    runner->replay(2);
    runner->observe({});
    ASSERT_EQ(recorder.replays(), 2u);
    for (std::size_t i = 0; i < 2; ++i) {
      std::vector<int> times(runner->program().tasks().size(), 0);
      for (const engine::Recorder::Slice& slice : recorder[i].slices) {
        ++times[static_cast<std::size_t>(slice.task)];
        EXPECT_LE(slice.begin_ns, slice.end_ns);
      }
      EXPECT_EQ(times, std::vector<int>(times.size(), 1));
    }
  }
}

TEST_F(CudaHostLanes, EndWithTheErrorOfATaskOfTheHost) {
  for (const RunnerKind kind : kKinds) {
    Exchange step;
    step.may_end = []() -> bool { throw Error(ErrorKind::comm, "a server is lost"); };
    const auto runner = make_runner(step.bench.device, step.program(), kind, {});
    EXPECT_THROW(runner->replay(), Error);
    step.bench.sync();
  }
}

}  // namespace
}  // namespace cifar_mpi::cuda::testing
