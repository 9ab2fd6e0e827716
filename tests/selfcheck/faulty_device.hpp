#pragma once

#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <thread>
#include <utility>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/comm/collective.hpp"
#include "support/backend_wrapper.hpp"
#include "support/launch_counter.hpp"

/// A device under test: the CPU, with a fault.
namespace cifar_mpi::selfcheck {

enum class Fault : std::uint8_t {
  none,
  gradient,
  graph,
  image,
  hidden_nan,
  moved_weights,
  sum,
  lost,
  network,
  observed,
  slow
};

/// On the rank that has the fault.
struct Faults {
  Fault fault = Fault::none;
  int made = 0;  ///< platforms
};

/// Delegates, except for its fault; runs graphs as lanes.
class FaultyBackend final : public test::BackendWrapper {
 public:
  FaultyBackend(std::unique_ptr<engine::Backend> real, const Faults& faults)
      : BackendWrapper(std::move(real)), faults_(faults) {}

  void copy(void* dst, const void* src, std::size_t bytes) override {
    BackendWrapper::copy(dst, src, bytes);
    if (faults_.fault == Fault::image && src == kept_) reinterpret_cast<float*>(dst)[7] += 0.1f;
  }
  engine::Task update_task(const engine::UpdateBinding& binding, const model::ParamTable& params,
                           const engine::ParamLayout& layout) override {
    engine::Task task = BackendWrapper::update_task(binding, params, layout);
    if (weight_ == nullptr) weight_ = binding.params + binding.begin;
    const auto in_graph = in_graph_ = std::make_shared<bool>(false);
    task.start = [this, binding, in_graph, start = std::move(task.start)](engine::Lane& lane) {
      if (faults_.fault == Fault::lost) throw Error(ErrorKind::device, "the device is gone");
      if (faults_.fault == Fault::gradient) const_cast<float*>(binding.grads)[binding.begin] += 0.5f;
      start(lane);
      const bool moves =
          (faults_.fault == Fault::graph && *in_graph) || faults_.fault == Fault::moved_weights;
      if (moves) binding.params[binding.begin] += 0x1.0p-10f;
    };
    return task;
  }
  engine::Task advance_task(const engine::AdvanceBinding& binding,
                            std::vector<engine::StepRecord>& records) override {
    control_ = const_cast<float*>(binding.control);
    engine::Task task = BackendWrapper::advance_task(binding, records);
    task.cost.bytes = 64.0;
    task.start = [this, start = std::move(task.start)](engine::Lane& lane) {
      if (faults_.fault == Fault::slow) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      start(lane);
    };
    return task;
  }
  std::unique_ptr<engine::Runner> runner(engine::StepProgram program, engine::RunnerKind kind,
                                         std::vector<engine::Bytes> regions) override {
    const bool graph = kind == engine::RunnerKind::graph;
    if (in_graph_) *in_graph_ = graph;
    auto real = BackendWrapper::runner(with_nan(program), graph ? engine::RunnerKind::lanes : kind,
                                       std::move(regions));
    auto seen = std::make_shared<const test::LaunchCounter*>(nullptr);
    auto runner = std::make_unique<test::LaunchCounter>(
        std::move(real), [this, seen, weight = std::exchange(weight_, nullptr)](int) {
          if (faults_.fault == Fault::observed && (*seen)->observation().look) *weight += 0x1.0p-10f;
        });
    *seen = runner.get();
    return runner;
  }

 private:
  /// The same program, except that a NaN in the images makes the loss NaN, which the CPU's ReLUs prevent; so
  /// the device can pass.
  engine::StepProgram with_nan(const engine::StepProgram& program) {
    engine::StepProgram copy(program.name());
    for (const engine::Instruction& line : program.instructions()) {
      if (line.op == engine::Op::set) copy.set(line.lane);
      if (line.op == engine::Op::wait) copy.wait(line.lane, line.target);
      if (line.op != engine::Op::run) continue;
      engine::Task task = program.tasks()[static_cast<std::size_t>(line.target)];
      if (task.observer && task.name == "keep images") kept_ = task.writes.front().begin;
      if (task.name == "augment" || task.name == "loss") {
        task.start = [this, start = task.start, input = task.name == "augment",
                      x = task.writes.front().begin](engine::Lane& lane) {
          start(lane);
          if (input) saw_nan_ = std::isnan(*reinterpret_cast<const float*>(x));
          if (!input && saw_nan_ && faults_.fault != Fault::hidden_nan)
            control_[engine::ControlLayout::loss_sum] = std::numeric_limits<float>::quiet_NaN();
        };
      }
      copy.run(line.lane, std::move(task));
    }
    copy.finalize();
    return copy;
  }

  const Faults& faults_;
  std::shared_ptr<bool> in_graph_;
  float* weight_ = nullptr;  ///< the first that the next program's updates move
  const std::byte* kept_ = nullptr;
  float* control_ = nullptr;
  bool saw_nan_ = false;
};

/// Loses part of the first value.
class FaultyCollective final : public comm::Collective {
 public:
  FaultyCollective(std::unique_ptr<comm::Collective> real, const Faults& faults)
      : real_(std::move(real)), faults_(faults) {}
  std::string_view name() const override { return real_->name(); }
  int ranks() const override { return real_->ranks(); }
  Buffer allocate(std::size_t bytes) override { return real_->allocate(bytes); }
  engine::Task all_reduce(std::string name, std::span<float> data, std::size_t prefix) override {
    engine::Task task = real_->all_reduce(std::move(name), data, prefix);
    task.poll = [this, data, poll = std::move(task.poll)] {
      if (poll && !poll()) return false;
      if (faults_.fault == Fault::sum) data.back() -= 1.0f;
      if (faults_.fault == Fault::network) throw Error(ErrorKind::comm, "the network is gone");
      return true;
    };
    return task;
  }

 private:
  std::unique_ptr<comm::Collective> real_;
  const Faults& faults_;
};

}  // namespace cifar_mpi::selfcheck
