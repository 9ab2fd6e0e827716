#include "cuda/runner.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cuda/check.hpp"
#include "cuda/delay_kernel.hpp"
#include "cuda/lanes_runner.hpp"
#include "engine/audit.hpp"

namespace cifar_mpi::cuda {
namespace {

using engine::Instruction;
using engine::kCompute;
using engine::Op;
using engine::RunnerKind;
using engine::StepProgram;
using engine::Task;

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
      seconds_[static_cast<std::size_t>(line.target)] +=
          is_of_host(line.target) ? run_on_host(line) : run_on_device(line);
      if (audit_) audit_->after(line.target);
    }
  }

  /// Seconds that it took.
  double run_on_device(const Instruction& line) {
    // The stream is idle: without it the clock would run while the host enqueues.
    enqueue_delay_kernel(stream(line.lane));
    check(cudaEventRecord(begin_.get(), stream(line.lane)), "starting the clock");
    start(line);
    check(cudaEventRecord(end_.get(), stream(line.lane)), "stopping the clock");
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
    if (graph == graphs_.end()) {
      finish();  // where no graph can be made, the caller goes on with the device at once
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
  const auto& tasks = program.tasks();
  const bool of_host =
      std::any_of(tasks.begin(), tasks.end(), [](const Task& task) { return static_cast<bool>(task.poll); });
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
