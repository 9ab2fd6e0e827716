#include "cifar_mpi/bench/step_benchmark.hpp"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/cuda/backend.hpp"
#include "support/backend_wrapper.hpp"
#include "support/launch_counter.hpp"
#include "support/mpi_world.hpp"

namespace cifar_mpi::cuda {
namespace {

/// The launches of each runner, by their numbers of steps.
using Launches = std::vector<std::map<int, int>>;

/// The backend, with runners that count their launches.
class CountingBackend final : public test::BackendWrapper {
 public:
  CountingBackend(std::unique_ptr<engine::Backend> real, Launches& launches)
      : BackendWrapper(std::move(real)), launches_(launches) {}
  std::unique_ptr<engine::Runner> runner(engine::StepProgram program, engine::RunnerKind kind,
                                         std::vector<engine::Bytes> regions) override {
    const std::size_t place = launches_.size();
    launches_.emplace_back();
    return std::make_unique<test::LaunchCounter>(
        BackendWrapper::runner(std::move(program), kind, std::move(regions)),
        [this, place](int times) { ++launches_[place][times]; });
  }

 private:
  Launches& launches_;
};

/// A graph runner enqueues in its first launch, and captures in the first later launch of each number of steps. The
/// rounds must time neither.
TEST(NcclStepBenchmark, TimesNoLaunchThatStillHasToCaptureItsGraph) {
  if (const std::string reason = unusable(); !reason.empty())
    GTEST_SKIP() << "LOUD: nothing of this test ran: " << reason;
  const comm::World& world = test::test_world();
  if (world.size() != 2) return;  // two have all variants
  bench::StepBenchmarkConfig config;
  config.batch_size = 2;
  config.precision = engine::Precision::fp32;
  config.graph_steps = 2;
  config.share_gpus = true;
  config.rounds = 1;
  config.round_s = 0.001;
  Launches launches, before;
  const auto step = bench::benchmark_step(
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
  ASSERT_EQ(before.size(), 5u);  // overlapped, in a row, with a report; blocking, alone
  for (std::size_t runner = 0; runner < before.size(); ++runner) {
    if (launches[runner].count(2) == 0) continue;  // with a report, which starts no graphs
    EXPECT_GE(before[runner][1], 1) << runner;
    EXPECT_GE(before[runner][2], 2) << runner;
    EXPECT_GT(launches[runner][2], before[runner][2]) << runner << " was not measured";
  }
}

}  // namespace
}  // namespace cifar_mpi::cuda
