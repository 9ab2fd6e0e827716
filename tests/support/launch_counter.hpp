#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "cifar_mpi/engine/runner.hpp"

namespace cifar_mpi::test {

/// A runner that reports each launch before it starts: its number of steps and its observation.
class LaunchCounter final : public engine::Runner {
 public:
  /// `graphs`: it claims to replay graphs, whatever `runner` does.
  LaunchCounter(std::unique_ptr<engine::Runner> runner, std::function<void(int)> note, bool graphs = false)
      : runner_(std::move(runner)), note_(std::move(note)), graphs_(graphs || runner_->replays_graphs()) {}
  void replay(int times) override {
    note_(times);
    runner_->replay(times);
  }
  void finish() override { runner_->finish(); }
  void observe(const engine::Observation& observation) override {
    observation_ = observation;
    runner_->observe(observation);
  }
  const engine::Observation& observation() const { return observation_; }
  std::uint64_t finished() const override { return runner_->finished(); }
  const engine::StepProgram& program() const override { return runner_->program(); }
  std::vector<double> task_seconds() const override { return runner_->task_seconds(); }
  bool replays_graphs() const override { return graphs_; }

 private:
  std::unique_ptr<engine::Runner> runner_;
  std::function<void(int)> note_;
  bool graphs_;
  engine::Observation observation_;
};

}  // namespace cifar_mpi::test
