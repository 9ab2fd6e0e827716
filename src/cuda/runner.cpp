#include "cuda/runner.hpp"

#include <nvtx3/nvToolsExt.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cuda/check.hpp"
#include "cuda/delay_kernel.hpp"
#include "cuda/lane.hpp"
#include "cuda/stopwatches.hpp"
#include "engine/audit.hpp"

namespace cifar_mpi::cuda {
namespace {

using engine::Instruction;
using engine::kCompute;
using engine::Op;
using engine::RunnerKind;
using engine::StepProgram;
using engine::Task;

/// How often a waiting host looks whether the run can still go on.
constexpr double kWatchSeconds = 0.1;

/// Names a stretch of the host's time for profilers.
class Range {
 public:
  explicit Range(const std::string& name) { nvtxRangePushA(name.c_str()); }
  ~Range() { nvtxRangePop(); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
};

/// What all runners share: the program, its lanes, and what passes between host and device around a replay.
class DeviceRunner : public engine::Runner {
 public:
  DeviceRunner(Device& device, StepProgram program)
      : device_(device),
        program_(std::move(program)),
        words_(device.link().words_read_by(program_)),
        rings_(device.link().rings_written_by(program_)) {
    for (engine::LaneId lane = 0; lane < program_.lanes(); ++lane) lanes_.emplace_back(device.stream(lane));
    for (Launch& launch : launches_) launch.done = make_event();
  }

  void replay(int times) final {
    const int launches = recorder_ != nullptr ? times : 1;
    for (int i = 0; i < launches; ++i) launch(times / launches);
  }

  void finish() final {
    wait_until(launches_[launched_ % launches_.size()]);  // the older one
    wait_until(launches_[(launched_ + 1) % launches_.size()]);
  }
  std::uint64_t finished() const final { return finished_; }
  const StepProgram& program() const final { return program_; }
  std::vector<double> task_seconds() const override { return {}; }

  void observe(const engine::Observation& observation) final {
    look_ = observation.look;
    if (recorder_ == nullptr && observation.recorder == nullptr) return;
    finish();
    if (recorder_ != nullptr) recorder_->end_replay(device_end_);
    recorder_ = observation.recorder;
    if (recorder_ == nullptr) return;
    for (Launch& launch : launches_) launch.watches.make(program_.tasks().size());
    anchor_.set(stream(kCompute));
  }

 protected:
  virtual void enqueue(int times) = 0;

  bool recording() const { return recorder_ != nullptr; }
  cudaStream_t stream(engine::LaneId lane) const { return lanes_[static_cast<std::size_t>(lane)].stream(); }
  const Task& task(engine::TaskId id) const { return program_.tasks()[static_cast<std::size_t>(id)]; }
  bool skips(engine::TaskId id) const { return !look_ && task(id).observer; }

  void start(const Instruction& line) {
    const Range range(task(line.target).name);
    const cudaStream_t lane = stream(line.lane);
    Stopwatches& watches = launches_[launched_ % launches_.size()].watches;
    if (recording()) watches.begin(line.target, lane);
    try {
      task(line.target).start(lanes_[static_cast<std::size_t>(line.lane)]);
    } catch (const Error& error) {
      throw Error(error.kind(), concat("task '", task(line.target).name, "': ", error.what()));
    }
    if (recording()) watches.end(line.target, lane);
  }

  /// Returns when the event has happened; looks at the watches meanwhile.
  void wait_for(const Event& event, const std::string& what) {
    double looked = steady_seconds();
    for (;;) {
      const cudaError_t status = cudaEventQuery(event.get());
      if (status == cudaSuccess) return;
      if (status != cudaErrorNotReady) check(status, what.c_str());
      static_cast<void>(cudaGetLastError());  // "not ready" must not be taken for an error of the next launch
      sched_yield();
      const double now = steady_seconds();
      if (now - looked < kWatchSeconds) continue;
      looked = now;
      for (const auto& watch : device_.link().watches) watch();
    }
  }

  Device& device_;
  StepProgram program_;
  std::vector<StreamLane> lanes_;
  bool look_ = false;

 private:
  struct Launch {
    Event done;
    std::uint64_t replays = 0;  ///< done with it and all before it
    bool recorded = false;
    Stopwatches watches;
  };

  void launch(int times) {
    for (const RequestWord* word : words_) {
      const int asked = word->source->load(std::memory_order_relaxed);
      std::atomic_ref<int>(*word->word.as<int>()).store(asked, std::memory_order_relaxed);
    }
    Launch& before = launches_[(launched_ + 1) % launches_.size()];
    Launch& launch = launches_[launched_ % launches_.size()];
    launch.recorded = recording();
    enqueue(times);
    check(cudaEventRecord(launch.done.get(), stream(kCompute)), "marking the end of a replay");
    launch.replays = before.replays + static_cast<std::uint64_t>(times);
    ++launched_;
    wait_until(before);
  }

  void wait_until(Launch& launch) {
    if (finished_ >= launch.replays) return;
    wait_for(launch.done, concat("running ", program_.name()));
    finished_ = launch.replays;
    if (launch.recorded) device_end_ = launch.watches.read(anchor_, *recorder_);
    for (RecordRing* ring : rings_) ring->deliver(finished_);
  }

  std::vector<const RequestWord*> words_;
  std::vector<RecordRing*> rings_;
  std::array<Launch, 2> launches_;  ///< the last two
  std::uint64_t launched_ = 0;      ///< launches
  std::uint64_t finished_ = 0;      ///< replays
  engine::Recorder* recorder_ = nullptr;
  Anchor anchor_;                ///< where there is a recorder
  std::int64_t device_end_ = 0;  ///< of the last replay that was recorded
};

/// One task after another, each finished before the next begins; marks have nothing left to order.
class SerialRunner final : public DeviceRunner {
 public:
  void watch(std::vector<engine::Bytes> regions) {
    audit_.emplace(
        program_, std::move(regions),
        [this](std::byte* dst, const std::byte* src, std::size_t bytes) { device_.copy(dst, src, bytes); });
  }

  SerialRunner(Device& device, StepProgram program)
      : DeviceRunner(device, std::move(program)),
        begin_(make_event(true)),
        end_(make_event(true)),
        seconds_(program_.tasks().size(), 0.0) {}

  std::vector<double> task_seconds() const override { return seconds_; }

 private:
  void enqueue(int times) override {
    for (int i = 0; i < times; ++i) run_once();
  }

  void run_once() {
    for (const Instruction& line : program_.instructions()) {
      if (line.op != Op::run || skips(line.target)) continue;
      if (audit_) audit_->before(line.target);
      // The stream is idle: without it the clock would run while the host enqueues.
      enqueue_delay_kernel(stream(line.lane));
      check(cudaEventRecord(begin_.get(), stream(line.lane)), "starting the clock");
      start(line);
      check(cudaEventRecord(end_.get(), stream(line.lane)), "stopping the clock");
      wait_for(end_, concat("running '", task(line.target).name, "'"));
      if (audit_) audit_->after(line.target);
      float milliseconds = 0.0f;
      check(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()), "reading the clock");
      seconds_[static_cast<std::size_t>(line.target)] += 1e-3 * static_cast<double>(milliseconds);
    }
  }

  Event begin_, end_;
  std::vector<double> seconds_;
  std::optional<engine::Audit> audit_;
};

/// The list as it stands: the streams keep the order of their lane, events that between lanes.
class LanesRunner : public DeviceRunner {
 public:
  LanesRunner(Device& device, StepProgram program)
      : DeviceRunner(device, std::move(program)), fork_(make_event()) {
    for (int mark = 0; mark < program_.marks(); ++mark) marks_.push_back(make_event());
    for (int lane = 0; lane < program_.lanes(); ++lane) joins_.push_back(make_event());
  }

 protected:
  void enqueue(int times) override {
    for (int i = 0; i < times; ++i) enqueue_once();
  }

 private:
  void enqueue_once() {
    if (recording()) hold_back();
    check(cudaEventRecord(fork_.get(), stream(kCompute)), "setting a mark");
    for (engine::LaneId lane = 1; lane < program_.lanes(); ++lane) wait(lane, fork_);
    for (const Instruction& line : program_.instructions()) {
      const auto target = static_cast<std::size_t>(line.target);
      switch (line.op) {
        case Op::run:
          if (!skips(line.target)) start(line);
          break;
        case Op::set:
          check(cudaEventRecord(marks_[target].get(), stream(line.lane)), "setting a mark");
          break;
        case Op::wait:
          wait(line.lane, marks_[target]);
          break;
      }
    }
    for (engine::LaneId lane = 1; lane < program_.lanes(); ++lane) {
      const Event& join = joins_[static_cast<std::size_t>(lane)];
      check(cudaEventRecord(join.get(), stream(lane)), "setting a mark");
      wait(kCompute, join);
    }
  }

  /// Until the replay is enqueued: else the times would show how long the host takes to do so, which a graph does not.
  void hold_back() const {
    constexpr std::uint64_t kPerTask = 20'000;  // ns; a few kernels and two events
    const std::uint64_t delays = kPerTask * program_.tasks().size() / kDelayNanoseconds + 1;
    for (std::uint64_t i = 0; i < delays; ++i) enqueue_delay_kernel(stream(kCompute));
  }

  void wait(engine::LaneId lane, const Event& event) const {
    check(cudaStreamWaitEvent(stream(lane), event.get(), 0), "waiting for a mark");
  }

  Event fork_;
  std::vector<Event> marks_;
  std::vector<Event> joins_;  ///< by lane
};

/// One graph for each number of replays that was asked for, with observers and without, made when it is.
class GraphRunner final : public LanesRunner {
 public:
  using LanesRunner::LanesRunner;

  bool replays_graphs() const override { return true; }

 private:
  void enqueue(int times) override {
    bool& warm = look_ ? observers_warm_ : warm_;
    if (!warm || recording()) {
      LanesRunner::enqueue(times);
      warm = warm_ = true;
      return;
    }
    const std::pair wanted(times, look_);
    auto graph = graphs_.find(wanted);
    if (graph == graphs_.end()) graph = graphs_.emplace(wanted, capture(times)).first;
    check(cudaGraphLaunch(graph->second.get(), stream(kCompute)), "starting a graph");
  }

  GraphExec capture(int times) {
    check(cudaStreamBeginCapture(stream(kCompute), cudaStreamCaptureModeThreadLocal), "starting a capture");
    try {
      LanesRunner::enqueue(times);
    } catch (...) {
      cudaGraph_t broken = nullptr;
      static_cast<void>(cudaStreamEndCapture(stream(kCompute), &broken));
      static_cast<void>(cudaGetLastError());
      const Graph owner(broken);
      throw;
    }
    cudaGraph_t captured = nullptr;
    check(cudaStreamEndCapture(stream(kCompute), &captured), "ending a capture");
    const Graph graph(captured);
    cudaGraphExec_t made = nullptr;
    check(cudaGraphInstantiate(&made, graph.get(), 0), "making a graph");
    return GraphExec(made);
  }

  bool warm_ = false;                                 ///< every kernel but those of observers has been loaded
  bool observers_warm_ = false;                       ///< these too
  std::map<std::pair<int, bool>, GraphExec> graphs_;  ///< by replays and whether observers run
};

}  // namespace

std::unique_ptr<engine::Runner> make_runner(Device& device, StepProgram program, RunnerKind kind,
                                            std::vector<engine::Bytes> regions) {
  if (!program.finalized()) {
    throw std::logic_error(concat("program '", program.name(), "' must be finalized before it can run"));
  }
  switch (kind) {
    case RunnerKind::serial:
      return std::make_unique<SerialRunner>(device, std::move(program));
    case RunnerKind::lanes:
      return std::make_unique<LanesRunner>(device, std::move(program));
    case RunnerKind::automatic:
    case RunnerKind::graph:
      return std::make_unique<GraphRunner>(device, std::move(program));
    case RunnerKind::audit: {
      auto runner = std::make_unique<SerialRunner>(device, std::move(program));
      runner->watch(std::move(regions));
      return runner;
    }
  }
  throw std::logic_error("make_runner: not a RunnerKind");
}

}  // namespace cifar_mpi::cuda
