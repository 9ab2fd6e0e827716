#include <algorithm>

#include "cifar_mpi/base/text.hpp"
#include "train/run_fixture.hpp"

/// Runs whose last ranks are servers.
namespace cifar_mpi::train {
namespace {

class ServedRun : public RunTest {
 protected:
  void SetUp() override {
    if (world().size() == 1) GTEST_SKIP() << "needs a worker and a server";
  }
  /// Twelve samples a step whatever the number of workers (1, 2, 3).
  TrainConfig served(const std::string& run_dir, int servers = 1) const {
    TrainConfig c = config();
    c.update = comm::UpdateKind::server;
    c.servers = servers;
    c.batch_size = 12 / (world().size() - servers);
    c.run_dir = path(run_dir);
    return c;
  }
  run::Checkpoint saved(const TrainConfig& config, std::uint64_t step) {
    world().barrier();
    return run::read_checkpoint(run::checkpoint_path(config.run_dir, step));
  }
};

void expect_same_state(const run::Checkpoint& a, const run::Checkpoint& b, optim::OptimizerKind kind) {
  for (const optim::StateRow& row : optim::state_rows(kind)) {
    SCOPED_TRACE(row.group);
    expect_same_tensors(a.state[row.role], b.state[row.role]);
  }
}

TEST_F(ServedRun, GivesTheSameBitsFromEveryRunner) {
  TrainConfig first = served("lanes"), second = served("audit");
  first.optimizer.kind = second.optimizer.kind = optim::OptimizerKind::momentum;
  first.lr = second.lr = 0.01;
  run(first);
  second.runner = engine::RunnerKind::audit;
  run(second);
  expect_same_state(saved(first, 4), saved(second, 4), first.optimizer.kind);
}

/// Whoever updates, what a checkpoint holds is of all ranks: averages, momentum, statistics.
TEST_F(ServedRun, ResumesToTheSameBitsWithAllThatTheServersKeep) {
  for (const char* const model : {"tutorial", "resnet20"}) {
    TrainConfig straight = served(concat(model, "_straight"));
    straight.model = model;
    straight.augment = data::Augment::crop;
    straight.input_size = 8;
    if (std::string(model) == "tutorial") straight.augment = data::Augment::tutorial, straight.input_size = 0;
    straight.optimizer.kind = optim::OptimizerKind::adamw;
    straight.lr = 0.001;
    straight.steps = 5;
    straight.eval_every = 0.25;
    run(straight);
    TrainConfig parts = straight;
    parts.run_dir = path(concat(model, "_parts"));
    for (const std::int64_t steps : {2, 5}) {
      parts.steps = steps;
      run(parts);
    }
    const run::Checkpoint a = saved(straight, 5), b = saved(parts, 5);
    expect_same_state(a, b, straight.optimizer.kind);
    for (const optim::StateRow& row : optim::state_rows(straight.optimizer.kind)) {
      EXPECT_TRUE(std::any_of(a.state[row.role].front().values.begin(),
                              a.state[row.role].front().values.end(), [](float v) { return v != 0.0f; }))
          << model << row.group;
    }
    EXPECT_EQ(a.provenance.test_accuracy, b.provenance.test_accuracy);
    EXPECT_EQ(a.progress.samples_seen, 5u * 12u);
    EXPECT_EQ(a.progress.resolved, b.progress.resolved);
    EXPECT_EQ(find_number(a.progress.resolved, "ranks"), world().size() - 1);
  }
}

TEST_F(ServedRun, HasTheSameWeightsAndRecordsOnEveryWorker) {
  TrainConfig c = served("run");
  c.shuffle = data::Shuffle::shard;
  c.steps = 6;
  const auto state = start(c);
  run_loop(*state);
  for (const optim::StateRow& row : state->state.rows()) {
    const Buffer& block = state->state[row.role];
    std::string mine(reinterpret_cast<const char*>(block.data()), block.size());
    std::string first = mine;
    world().broadcast(first);
    const bool has = !state->serves() || row.role != optim::StateRole::weights;
    EXPECT_TRUE(!has || mine == first) << row.group;
  }
  for (std::size_t step = 0; step < 6; ++step) {
    const engine::StepRecord& record = state->records[step];
    EXPECT_EQ(record.samples, 12.0);
    for (const double value : {record.cross_entropy, record.decay_term, record.correct}) {
      double first = value;
      world().broadcast(std::as_writable_bytes(std::span(&first, 1)));
      EXPECT_EQ(first, value) << "step " << step;
    }
    EXPECT_EQ(record.slots.size(), 8u * static_cast<std::size_t>(world().size() - 1));
  }
}

TEST_F(ServedRun, StopsOnRequestOfItsLastServerWithACheckpoint) {
  TrainConfig c = served("stopped");
  c.steps = 1000;
  const auto state = start(c);
  if (world().rank() == world().size() - 1) stop_ = engine::kStopRequest;
  expect_agreed(ErrorKind::stopped, "stopped on request at step", [&] { run_loop(*state); });
  world().barrier();
  EXPECT_FALSE(run::list_checkpoints(c.run_dir).empty());
}

TEST_F(ServedRun, EndsAllRanksWhereItDiverges) {
  TrainConfig c = served("diverged");
  c.lr = 1e9;
  c.steps = 50;
  expect_agreed(ErrorKind::diverged, "diverged: the loss of step", [&] { run(c); });
}

TEST_F(ServedRun, RefusesServersWithoutWorkers) {
  TrainConfig c = served("none");
  c.batch_size = 4;
  c.servers = world().size();
  expect_agreed(ErrorKind::usage, concat("--servers ", c.servers, " of ", c.servers, " ranks leaves none"),
                [&] { start(c); });
}

}  // namespace
}  // namespace cifar_mpi::train
