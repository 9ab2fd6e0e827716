#include <algorithm>
#include <vector>

#include "cuda/device/gpu.hpp"
#include "cuda/device/training_run.hpp"
#include "support/networks.hpp"

/// Several steps in one launch.
namespace cifar_mpi::cuda::testing {
namespace {

using engine::kRecordRing;
using engine::RunnerKind;

class CudaLaunch : public GpuTest {
 protected:
  /// The state after these launches, and the losses of their steps.
  struct Outcome {
    std::vector<float> params, ema;
    std::vector<double> losses;
    bool operator==(const Outcome&) const = default;
  };

  Outcome take(RunnerKind kind, const std::vector<int>& launches) {
    const auto backend = make_backend({});
    TrainingRun run(*backend, {.net = test::orders_of_layers().front(), .batch = 8});
    const auto runner = run.runner(run.step_program(), kind);
    std::uint64_t steps = 0;
    for (const int times : launches) {
      runner->replay(times);
      steps += static_cast<std::uint64_t>(times);
    }
    runner->finish();
    EXPECT_EQ(run.steps(), steps);
    Outcome outcome{run.params(), run.ema(), {}};
    for (std::uint64_t step = steps - std::min(steps, kRecordRing); step < steps; ++step) {
      EXPECT_EQ(run.records[step % kRecordRing].step, step);
      outcome.losses.push_back(run.records[step % kRecordRing].cross_entropy);
    }
    return outcome;
  }
};

TEST_F(CudaLaunch, OfSeveralStepsGivesTheBitsOfAsManyLaunches) {
  const Outcome wanted = take(RunnerKind::serial, std::vector<int>(6, 1));
  for (const RunnerKind kind : {RunnerKind::serial, RunnerKind::lanes, RunnerKind::graph}) {
    for (const std::vector<int>& launches : {std::vector<int>{1, 2, 1, 2}, {2, 2, 2}, {6}, {1, 1, 4}}) {
      EXPECT_TRUE(take(kind, launches) == wanted) << static_cast<int>(kind) << ", " << launches.front();
    }
  }
}

TEST_F(CudaLaunch, HandsOverTheRecordsOfTheLaunchBefore) {
  const auto backend = make_backend({});
  TrainingRun run(*backend, {.net = test::orders_of_layers().back()});
  const auto runner = run.runner(run.record_program(), RunnerKind::graph);
  constexpr int kMost = kRecordRing / 2;
  std::uint64_t before = 0, done = 0;
  for (const int times : {1, kMost, kMost, 3}) {
    runner->replay(times);
    EXPECT_EQ(runner->finished(), done);
    for (std::uint64_t step = before; step < done; ++step) {
      ASSERT_EQ(run.records[step % kRecordRing].step, step);
    }
    before = done;
    done += static_cast<std::uint64_t>(times);
  }
  runner->finish();
  EXPECT_EQ(runner->finished(), done);
  EXPECT_EQ(run.records[(done - 1) % kRecordRing].step, done - 1);
}

}  // namespace
}  // namespace cifar_mpi::cuda::testing
