#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cuda/control.hpp"
#include "cuda/device_runner.hpp"
#include "cuda/handles.hpp"
#include "cuda/host_link.hpp"
#include "engine/audit.hpp"

namespace cifar_mpi::cuda {
namespace {

using engine::Instruction;
using engine::kCompute;
using engine::Op;
using engine::RunnerKind;
using engine::StepProgram;
using engine::Task;

/// Runs one task after another, each to its end, so marks have nothing left to order.
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
    if (audit_) audit_->begin();
    for (const Instruction& line : program_.instructions()) {
      if (line.op != Op::run || skips(line.target)) continue;
      if (audit_) audit_->before(line.target);
      seconds_[static_cast<std::size_t>(line.target)] +=
          is_of_host(line.target) ? run_on_host(line) : run_on_device(line);
      if (audit_) audit_->after(line.target);
    }
    if (audit_) audit_->end();
  }

  /// Returns the seconds that it took.
  double run_on_device(const Instruction& line) {
    device_.link().gate.close(stream(line.lane), 1);
    check(cudaEventRecord(begin_.get(), stream(line.lane)), "starting the clock");
    start(line);
    check(cudaEventRecord(end_.get(), stream(line.lane)), "stopping the clock");
    device_.link().gate.open();
    wait_for(end_, concat("running '", task(line.target).name, "'"));
    float milliseconds = 0.0f;
    check(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()), "reading the clock");
    return 1e-3 * static_cast<double>(milliseconds);
  }

  double run_on_host(const Instruction& line) {
    const double began = steady_seconds();
    start(line);
    while (!poll(line)) give_way();
    return steady_seconds() - began;
  }

  Event begin_, end_;
  std::vector<double> seconds_;
  std::optional<engine::Audit> audit_;
};

/// Enqueues the list as it is: streams keep the order within a lane, events the order between lanes.
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

  /// Begins a replay: all lanes wait for the work enqueued on the compute lane.
  void fork() {
    // else the times would contain what the host takes to enqueue the replay
    if (recording()) device_.link().gate.close(stream(kCompute), program_.tasks().size());
    check(cudaEventRecord(fork_.get(), stream(kCompute)), "setting a mark");
    for (engine::LaneId lane = 1; lane < program_.lanes(); ++lane) wait_for_event(lane, fork_);
  }
  /// Ends a replay: the compute lane waits for all lanes.
  void join() {
    for (engine::LaneId lane = 1; lane < program_.lanes(); ++lane) {
      const Event& join = joins_[static_cast<std::size_t>(lane)];
      check(cudaEventRecord(join.get(), stream(lane)), "setting a mark");
      wait_for_event(kCompute, join);
    }
    device_.link().gate.open();
  }
  void set(engine::LaneId lane, engine::MarkId mark) const {
    check(cudaEventRecord(marks_[static_cast<std::size_t>(mark)].get(), stream(lane)), "setting a mark");
  }
  void wait(engine::LaneId lane, engine::MarkId mark) const {
    wait_for_event(lane, marks_[static_cast<std::size_t>(mark)]);
  }

 private:
  virtual void enqueue_once() {
    fork();
    for (const Instruction& line : program_.instructions()) {
      if (line.op == Op::set) set(line.lane, line.target);
      if (line.op == Op::wait) wait(line.lane, line.target);
      if (line.op == Op::run && !skips(line.target)) start(line);
    }
    join();
  }

  void wait_for_event(engine::LaneId lane, const Event& event) const {
    check(cudaStreamWaitEvent(stream(lane), event.get(), 0), "waiting for a mark");
  }

  Event fork_;
  std::vector<Event> marks_;
  std::vector<Event> joins_;  ///< by lane
};

/// Runs programs that have host tasks, such as messages between ranks, among those of the device.
///
/// One thread visits the lanes in turn and enqueues each as far as possible: up to a host task, which begins when the
/// stream has finished all earlier work, or up to a wait for a mark that a host task delays. So the device always has
/// all the work that needs no message.
class HostLanesRunner final : public LanesRunner {
 public:
  HostLanesRunner(Device& device, StepProgram program)
      : LanesRunner(device, std::move(program)),
        queues_(static_cast<std::size_t>(program_.lanes())),
        set_in_(static_cast<std::size_t>(program_.marks()), 0) {
    for (const Instruction& line : program_.instructions())
      queues_[static_cast<std::size_t>(line.lane)].lines.push_back(line);
    for (Queue& queue : queues_) queue.drained = make_event();
  }

 private:
  /// The state of a host task.
  enum class Phase : std::uint8_t { ahead, lane_drains, under_way };
  struct Queue {
    std::vector<Instruction> lines;  ///< this lane's instructions
    std::size_t next = 0;
    Phase phase = Phase::ahead;  ///< of the host task at `next`
    Event drained;

    bool done() const { return next == lines.size(); }
  };

  void enqueue_once() override {
    ++replay_;
    for (Queue& queue : queues_) queue.next = 0, queue.phase = Phase::ahead;
    fork();
    for (bool done = false; !done;) {
      bool moved = false;
      done = true;
      for (Queue& queue : queues_) {
        moved = advance(queue) || moved;
        done = done && queue.done();
      }
      if (moved || done) continue;
      device_.link().gate.open();
      give_way();
    }
    join();
  }

  /// Enqueues as much of the lane as possible; returns whether that was anything.
  bool advance(Queue& queue) {
    const std::size_t before = queue.next;
    while (!queue.done() && is_past(queue.lines[queue.next], queue)) ++queue.next;
    return queue.next != before;
  }

  /// Enqueues the instruction, or makes progress in what it waits for; returns whether the lane may continue with the
  /// next one.
  bool is_past(const Instruction& line, Queue& queue) {
    const auto target = static_cast<std::size_t>(line.target);
    switch (line.op) {
      case Op::set:
        set(line.lane, line.target);
        set_in_[target] = replay_;
        return true;
      case Op::wait:
        if (set_in_[target] != replay_) return false;
        wait(line.lane, line.target);
        return true;
      case Op::run:
        if (skips(line.target)) return true;
        if (is_of_host(line.target)) return is_past_host(line, queue);
        start(line);
        return true;
    }
    return true;
  }

  bool is_past_host(const Instruction& line, Queue& queue) {
    if (queue.phase == Phase::ahead) {
      check(cudaEventRecord(queue.drained.get(), stream(line.lane)), "setting a mark");
      queue.phase = Phase::lane_drains;
    }
    if (queue.phase == Phase::lane_drains) {
      if (!has_happened(queue.drained, task(line.target).name)) return false;
      start(line);
      queue.phase = Phase::under_way;
    }
    if (!poll(line)) return false;
    queue.phase = Phase::ahead;
    return true;
  }

  std::vector<Queue> queues_;          ///< by lane
  std::vector<std::uint64_t> set_in_;  ///< mark → the last replay that set it
  std::uint64_t replay_ = 0;
};

/// Keeps one graph for each number of replays that was requested, with observers and without, and makes each at the
/// first request.
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
    if (graph == graphs_.end()) {
      finish();  // if no graph can be made, the caller continues to use the device at once
      graph = graphs_.emplace(wanted, capture(times)).first;
    }
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
    // Without the flag a graph's nodes forget the priorities of the streams that they were captured from.
    check(cudaGraphInstantiate(&made, graph.get(), cudaGraphInstantiateFlagUseNodePriority),
          "making a graph");
    return GraphExec(made);
  }

  bool warm_ = false;            ///< every kernel has been loaded, except those of observers
  bool observers_warm_ = false;  ///< their kernels have been loaded, too
  std::map<std::pair<int, bool>, GraphExec> graphs_;  ///< by the number of replays and whether observers run
};

}  // namespace

std::unique_ptr<engine::Runner> make_runner(Device& device, StepProgram program, RunnerKind kind,
                                            std::vector<engine::Bytes> regions) {
  if (!program.finalized()) {
    throw std::logic_error(concat("program '", program.name(), "' must be finalized before it can run"));
  }
  const auto& tasks = program.tasks();
  const bool of_host =
      std::ranges::any_of(tasks, [](const Task& task) { return static_cast<bool>(task.poll); });
  switch (kind) {
    case RunnerKind::serial:
      return std::make_unique<SerialRunner>(device, std::move(program));
    case RunnerKind::lanes:
      if (of_host) return std::make_unique<HostLanesRunner>(device, std::move(program));
      return std::make_unique<LanesRunner>(device, std::move(program));
    case RunnerKind::automatic:
    case RunnerKind::graph:
      if (of_host) return std::make_unique<HostLanesRunner>(device, std::move(program));
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
