#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/cpu/backend.hpp"
#include "cifar_mpi/cuda/backend.hpp"
#include "train/run_fixture.hpp"

/// Runs whose last ranks are servers, with GPUs for the workers.
namespace cifar_mpi::train {
namespace {

class CudaServedRun : public RunTest {
 protected:
  void SetUp() override {
    if (const std::string reason = cuda::unusable(); !reason.empty())
      GTEST_SKIP() << "LOUD: nothing of this test ran: " << reason;
    if (!cpu::unusable().empty()) GTEST_SKIP() << "LOUD: no CPU backend for the servers";
    if (world().size() == 1) GTEST_SKIP() << "needs a worker and a server";
  }
  /// With small images, which are fast. Two of 4 ranks are servers.
  config::TrainConfig served(const std::string& run_dir) const {
    config::TrainConfig c = config();
    c.run_dir = path(run_dir);
    c.input_size = 8;
    c.update = comm::UpdateKind::server;
    c.servers = world().size() / 2;
    c.batch_size = 4;
    c.share_gpus = true;
    c.optimizer.kind = optim::OptimizerKind::momentum;
    c.lr = 0.01;
    c.eval_every = 0.0;
    return c;
  }
  static comm::Platform gpus_for_workers(const engine::BackendOptions& options) {
    return options.serves ? platform(options) : cuda::make_platform(options);
  }
  void run_on_gpus(const config::TrainConfig& config) {
    run(*set_up(config, opened(config), world(), Log(world().rank() + 1), gpus_for_workers, stop_));
  }
  static void expect_same_bits(const run::Checkpoint& a, const run::Checkpoint& b) {
    expect_same_state(a, b);
    EXPECT_EQ(a.progress.batches, b.progress.batches);
  }
};

/// The largest difference of two values of a row, and the largest value.
std::pair<double, double> difference(const run::Checkpoint& a, const run::Checkpoint& b,
                                     optim::StateRole role) {
  double apart = 0.0, largest = 0.0;
  const auto &of_a = a.state[role], &of_b = b.state[role];
  for (std::size_t t = 0; t < of_a.size(); ++t) {
    for (std::size_t i = 0; i < of_a[t].values.size(); ++i) {
      apart = std::max(apart, std::abs(static_cast<double>(of_a[t].values[i]) - of_b[t].values[i]));
      largest = std::max(largest, std::abs(static_cast<double>(of_a[t].values[i])));
    }
  }
  return {apart, largest};
}

TEST_F(CudaServedRun, StepsAsWorkersOnTheCpuDo) {
  config::TrainConfig host = served("host");
  host.model = "resnet20";  // has statistics
  host.augment = data::Augment::crop;
  host.checkpoint_every = 1;
  host.keep = 4;
  config::TrainConfig device = host;
  device.run_dir = path("device");
  run(host);
  run_on_gpus(device);
  const run::Checkpoint begin = saved(host, 1), a = saved(host, 4), b = saved(device, 4);
  for (const optim::StateRow& row : optim::state_rows(host.optimizer.kind)) {
    const auto [apart, largest] = difference(a, b, row.role);
    EXPECT_LE(apart, 1e-5 * largest) << row.group;
    EXPECT_GT(difference(begin, a, row.role).first, 1e-3 * largest) << "else the bound says nothing";
  }
}

TEST_F(CudaServedRun, GivesTheSameBitsFromEveryRunner) {
  const config::TrainConfig first = served("graph");
  run_on_gpus(first);
  for (const engine::RunnerKind kind :
       {engine::RunnerKind::serial, engine::RunnerKind::lanes, engine::RunnerKind::audit}) {
    config::TrainConfig other = served(std::string(to_string(kind)));
    other.runner = kind;
    run_on_gpus(other);
    expect_same_bits(saved(first, 4), saved(other, 4));
  }
}

TEST_F(CudaServedRun, ResumesToTheSameBitsWithAllThatTheServersKeep) {
  for (const bool drawn : {false, true}) {
    config::TrainConfig whole = served(concat("whole", drawn));
    whole.model = "resnet20";
    whole.augment = data::Augment::crop;
    if (drawn) whole.aggregation = {.asynchronous = true, .most_drift = 2, .arrival_order = 3};
    whole.shuffle = data::Shuffle::shard;
    whole.steps = 8;
    whole.checkpoint_every = 4;
    run_on_gpus(whole);
    config::TrainConfig parts = whole;
    parts.run_dir = path(concat("parts", drawn));
    for (const std::int64_t steps : {4, 8}) {
      parts.steps = steps;
      run_on_gpus(parts);
    }
    expect_same_bits(saved(whole, 8), saved(parts, 8));
  }
}

/// Also at a requested stop: the weights from which all ranks continue.
TEST_F(CudaServedRun, HasTheSameWeightsOnEveryWorkerWhereUpdatesAreOfTheFirstPushes) {
  if (world().size() < 4) GTEST_SKIP() << "needs more than one worker";
  config::TrainConfig c = served("first_ones");
  c.servers = 1;
  c.aggregation.pushes = 2;
  c.steps = 12;
  c.checkpoint_every = 5;
  c.check_every = 3;  // throws where they differ
  run_on_gpus(c);
  const run::Checkpoint end = saved(c, 12);
  EXPECT_EQ(end.progress.samples_seen, 12u * 8u);
  EXPECT_EQ(end.progress.batches.size(), 3u);
}

TEST_F(CudaServedRun, StopsOnRequestOfAServerWithACheckpoint) {
  config::TrainConfig c = served("stopped");
  c.steps = 1000;
  if (world().rank() == world().size() - 1) stop_ = engine::kStopRequest;
  expect_agreed(ErrorKind::stopped, "stopped on request at step", [&] { run_on_gpus(c); });
  EXPECT_FALSE(run::list_checkpoints(Directory(c.run_dir)).empty());
}

}  // namespace
}  // namespace cifar_mpi::train
