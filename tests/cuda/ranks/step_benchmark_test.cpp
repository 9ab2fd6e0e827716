#include "cifar_mpi/train/step_benchmark.hpp"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/cuda/backend.hpp"
#include "support/launch_counter.hpp"
#include "support/mpi_world.hpp"

namespace cifar_mpi::cuda {
namespace {

/// The launches of each runner, by the steps that each took.
using Launches = std::vector<std::map<int, int>>;

/// The backend, with runners that count.
class CountingBackend final : public engine::Backend {
 public:
  CountingBackend(std::unique_ptr<engine::Backend> backend, Launches& launches)
      : backend_(std::move(backend)), launches_(launches) {}
  std::string description() const override { return backend_->description(); }
  engine::Precision resolve(engine::Precision precision) const override {
    return backend_->resolve(precision);
  }
  Buffer allocate(std::size_t bytes) override { return backend_->allocate(bytes); }
  void copy(std::byte* dst, const std::byte* src, std::size_t bytes) override {
    backend_->copy(dst, src, bytes);
  }
  engine::TowerKernels plan(const engine::TowerSpec& spec) override { return backend_->plan(spec); }
  engine::Task update_task(const engine::UpdateBinding& binding, const model::ParamTable& params,
                           const engine::ParamLayout& layout) override {
    return backend_->update_task(binding, params, layout);
  }
  engine::Task gradient_norm_task(const engine::GradientNormBinding& binding) override {
    return backend_->gradient_norm_task(binding);
  }
  engine::Task count_task(std::string name, const std::vector<engine::CountBinding>& bindings) override {
    return backend_->count_task(std::move(name), bindings);
  }
  engine::Task running_task(const engine::RunningBinding& binding, const model::ParamTable& params,
                            const engine::ParamLayout& layout) override {
    return backend_->running_task(binding, params, layout);
  }
  engine::Task advance_task(const engine::AdvanceBinding& binding,
                            std::vector<engine::StepRecord>& records) override {
    return backend_->advance_task(binding, records);
  }
  engine::Task sum_task(std::string name, float* dst, const float* a, const float* b,
                        std::size_t n) override {
    return backend_->sum_task(std::move(name), dst, a, b, n);
  }
  engine::Task share_task(std::string name, float* dst, const float* a, const float* b, float share,
                          std::size_t n) override {
    return backend_->share_task(std::move(name), dst, a, b, share, n);
  }
  std::unique_ptr<engine::Runner> runner(engine::StepProgram program, engine::RunnerKind kind,
                                         std::vector<engine::Bytes> regions) override {
    const std::size_t place = launches_.size();
    launches_.emplace_back();
    return std::make_unique<test::LaunchCounter>(
        backend_->runner(std::move(program), kind, std::move(regions)),
        [this, place](int times) { ++launches_[place][times]; });
  }

 private:
  std::unique_ptr<engine::Backend> backend_;
  Launches& launches_;
};

/// A runner of graphs enqueues in its first launch and captures in the first of so many steps behind it: what
/// the rounds time must be none of these.
TEST(NcclStepBenchmark, TimesNoLaunchThatStillHasToCaptureItsGraph) {
  if (const std::string reason = unusable(); !reason.empty())
    GTEST_SKIP() << "LOUD: nothing of this test ran: " << reason;
  const comm::World& world = test::test_world();
  if (world.size() > 2) return;  // two have all variants
  train::StepBenchmarkConfig config;
  config.batch_size = 2;
  config.precision = engine::Precision::fp32;
  config.graph_steps = 2;
  config.share_gpus = true;
  config.rounds = 2;
  config.round_s = 0.001;
  Launches launches, before;
  const auto step = train::benchmark_step(
      config, world,
      [&](const engine::BackendOptions& options) {
        comm::Platform platform = make_platform(options);
        platform.backend = std::make_unique<CountingBackend>(std::move(platform.backend), launches);
        return platform;
      },
      [&](engine::Precision, int, double) {
        if (before.empty()) before = launches;
        return engine::RooflineLimits{.flops = 1e12, .bytes = 1e12};
      });
  EXPECT_GT(step.step_s.least, 0.0);
  ASSERT_EQ(before.size(), world.size() > 1 ? 5u : 3u);  // overlapped, in a row, told; blocking, alone
  for (std::size_t runner = 0; runner < before.size(); ++runner) {
    if (launches[runner].count(2) == 0) continue;  // told, which starts no graphs
    EXPECT_GE(before[runner][1], 1) << runner;
    EXPECT_GE(before[runner][2], 2) << runner;
    EXPECT_GT(launches[runner][2], before[runner][2]) << runner << " was not measured";
  }
}

}  // namespace
}  // namespace cifar_mpi::cuda
