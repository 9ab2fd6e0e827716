#include "cifar_mpi/bench/step_benchmark.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "cifar_mpi/cpu/backend.hpp"
#include "cifar_mpi/model/net_spec.hpp"
#include "support/backend_wrapper.hpp"
#include "support/launch_counter.hpp"
#include "support/mpi_world.hpp"

namespace cifar_mpi::bench {
namespace {

constexpr int kBatch = 8;

StepBenchmark benchmark(const engine::RooflineLimits& limits, const std::string& model = "tutorial",
                        engine::ConvMethod conv = engine::ConvMethod::automatic) {
  StepBenchmarkConfig config;
  config.conv = conv;
  config.model = model;
  config.batch_size = kBatch;
  config.threads = 1;
  config.precision = engine::Precision::fp32;
  config.rounds = 3;
  config.round_s = 0.01;
  return benchmark_step(
      config, test::test_world(),
      [](const engine::BackendOptions& options) { return comm::on_host(cpu::make_backend(options)); },
      [&](engine::Precision, int, double) { return limits; });
}

TEST(StepBenchmark, HasTheModelsOperationsInItsTasks) {
  const StepBenchmark b = benchmark({.flops = 1e12}, "tutorial", engine::ConvMethod::direct);
  double flops = 0.0;
  for (const auto& row : b.tasks) flops += row.flops;
  const model::NetSpec net = model::make_model("tutorial", {24, 24, 3}, 10);
  EXPECT_NEAR(flops, kBatch * model::training_flops(net).in_image, 1e-9 * flops);
  EXPECT_NEAR(b.floor_s, flops / 1e12, 1e-9 * b.floor_s);
  EXPECT_NEAR(b.share.most, b.floor_s / b.step_s.least, 1e-9);
}

TEST(StepBenchmark, GivesAResidualNetworkTheInputAndTheOptimizerOfItsRecipe) {
  const StepBenchmark b = benchmark({.flops = 1e12}, "resnet20");
  EXPECT_EQ(b.model, "resnet20");
  const model::NetSpec net = model::make_model("resnet20", {32, 32, 3}, 10);
  EXPECT_EQ(b.in_image_flops, model::training_flops(net).in_image);
  double update_bytes = 0.0;
  for (const auto& row : b.tasks) {
    if (row.task.starts_with("update")) update_bytes += row.bytes;
  }
  const auto has = [&](const std::string& task, double bytes) {
    return std::any_of(b.tasks.begin(), b.tasks.end(),
                       [&](const auto& row) { return row.task.starts_with(task) && row.bytes == bytes; });
  };
  EXPECT_TRUE(has("augment", kBatch * (32 * 32 * 3 * (1 + sizeof(float)) + 2.0)));
  // Weights, averages and momentum are read and written.
  EXPECT_GE(update_bytes, 7 * sizeof(float) * 269722.0);
}

TEST(StepBenchmark, ComparesExposedCommunicationWithTheBlockingSumsWhereThatMeansSomething) {
  StepBenchmark b;
  b.all_reduce = "ring";
  const auto text = [&](double exposed_s, double blocking_s) {
    b.exposed_s.median = exposed_s;
    b.alone_s.median = 0.25;
    b.blocking_s.median = 0.25 + blocking_s;
    return exposed_text(b, "ms", 1e3);
  };
  EXPECT_EQ(text(0.125, 0.5),
            "exposed communication: 125.000 ms, 25 % of the blocking all-reduce (500.000 ms; ring)");
  EXPECT_EQ(
      text(0.5, 0.125),
      "exposed communication: 500.000 ms, more than the blocking all-reduce (125.000 ms; ring): overlap "
      "gains nothing here, or other work disturbs the rounds");
  EXPECT_EQ(text(-0.125, 0.5),
            "exposed communication: -125.000 ms, but the blocking all-reduce 500.000 ms (ring): other work "
            "disturbs the rounds");
  EXPECT_EQ(text(0.25, -0.125),
            "exposed communication: 250.000 ms, but the blocking all-reduce -125.000 ms (ring): other work "
            "disturbs the rounds");
}

TEST(StepBenchmark, SaysWhichKernelsItMeasured) {
  const StepBenchmark b = benchmark({.flops = 1e12}, "tutorial", engine::ConvMethod::direct);
  EXPECT_NE(b.kernels.find("\nconv2 forward: "), std::string::npos) << b.kernels;
}

TEST(StepBenchmark, HasTheSameBitsInEachRunAndOthersFromOtherKernels) {
  const engine::RooflineLimits limits{.flops = 1e12};
  const std::uint64_t bits = benchmark(limits).bits;
  EXPECT_EQ(benchmark(limits).bits, bits);
  EXPECT_NE(benchmark(limits, "tutorial", engine::ConvMethod::direct).bits, bits);
}

/// The backend, whose first runner calls `note` before each launch.
class NotedBackend final : public test::BackendWrapper {
 public:
  NotedBackend(std::unique_ptr<engine::Backend> real, std::function<void(int)> note)
      : BackendWrapper(std::move(real)), note_(std::move(note)) {}
  std::unique_ptr<engine::Runner> runner(engine::StepProgram program, engine::RunnerKind kind,
                                         std::vector<engine::Bytes> regions) override {
    auto made = BackendWrapper::runner(std::move(program), kind, std::move(regions));
    if (!note_) return made;
    return std::make_unique<test::LaunchCounter>(std::move(made), std::exchange(note_, nullptr));
  }

 private:
  std::function<void(int)> note_;
};

struct Launched {
  int before = 0;  ///< the first round
  int in_round = 0;
};
/// Of a benchmark of one round, in which launches [slow, slow + 2) take half a second more.
Launched launches_of(int slow) {
  Launched launched;
  int all = 0;
  StepBenchmarkConfig config;
  config.batch_size = 2;
  config.threads = 1;
  config.precision = engine::Precision::fp32;
  config.rounds = 1;
  config.round_s = 0.2;
  benchmark_step(
      config, test::test_world(),
      [&](const engine::BackendOptions& options) {
        comm::Platform platform = comm::on_host(cpu::make_backend(options));
        platform.backend = std::make_unique<NotedBackend>(std::move(platform.backend), [&, slow](int) {
          if (all == slow || all == slow + 1) std::this_thread::sleep_for(std::chrono::milliseconds(500));
          ++all;
        });
        return platform;
      },
      [&](engine::Precision, int, double) {
        launched.before = all;
        return engine::RooflineLimits{.flops = 1e12};
      });
  launched.in_round = all - launched.before;
  return launched;
}

/// Two trials of two launches each precede the rounds.
TEST(StepBenchmark, HasRoundsOfTheLengthThatTheFasterOfTwoTrialsGives) {
  const int before = launches_of(-2).before;
  for (const int trial : {before - 4, before - 2}) {
    const Launched launched = launches_of(trial);
    EXPECT_EQ(launched.before, before);
    EXPECT_GT(launched.in_round, 1) << "which a step of 0.5 s would give";
  }
}

TEST(StepBenchmark, HoldsEachTaskAgainstTheLimitThatItMeetsFirst) {
  const engine::RooflineLimits limits{.flops = 1e12, .bytes = 1e10};
  const StepBenchmark b = benchmark(limits);
  double sum = 0.0;
  for (const auto& row : b.tasks) {
    EXPECT_EQ(row.floor_s, std::max(row.flops / limits.flops, row.bytes / limits.bytes)) << row.task;
    EXPECT_EQ(row.bytes == 0.0, row.task.starts_with("all-reduce")) << row.task;
    sum += row.floor_s;
  }
  EXPECT_NEAR(b.floor_s, sum, 1e-9 * sum);
  // Less than all images of the data, which a step may read.
  const auto augment =
      std::find_if(b.tasks.begin(), b.tasks.end(), [](const auto& row) { return row.task == "augment"; });
  ASSERT_NE(augment, b.tasks.end());
  EXPECT_EQ(augment->bytes, kBatch * (24 * 24 * 3 * (1 + sizeof(float)) + 2.0));
}

}  // namespace
}  // namespace cifar_mpi::bench
