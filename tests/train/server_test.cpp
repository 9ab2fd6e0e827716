#include <algorithm>
#include <cmath>
#include <numeric>

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
  /// Twelve samples a step for any number of workers (1, 2, 3).
  config::TrainConfig served(const std::string& run_dir, int servers = 1) const {
    config::TrainConfig c = config();
    c.update = comm::UpdateKind::server;
    c.servers = servers;
    c.batch_size = 12 / (world().size() - servers);
    c.run_dir = path(run_dir);
    return c;
  }
  /// The initial state of a run, on a worker.
  std::vector<run::NamedTensor> initial_weights(const config::TrainConfig& config) {
    const auto state = start(config);
    if (state->plan.serves()) return {};
    return state->blocks.state.read(*state->device.backend, *state->device.tower,
                                    state->plan.network.params)[optim::StateRole::weights];
  }
  using Records = std::vector<engine::StepRecord>;
  static Records records_of(const std::unique_ptr<SessionState>& state) {
    run(*state);
    return state->blocks.records;
  }
  /// Workers have a simulated device: arrays that are copied to and from the host.
  Records run_on_devices(const config::TrainConfig& config) {
    const auto with_device = [this](const engine::BackendOptions& options) {
      comm::Platform made = platform(options);
      made.collectives.device = !options.serves;
      options_ = options;
      return made;
    };
    return records_of(set_up(config, opened(config), world(), Log(world().rank() + 1), with_device, stop_));
  }
  /// Expects the same weights on all workers, and the same other values on all ranks.
  static void expect_same_state_on_all_ranks(const SessionState& state) {
    for (const optim::StateRow& row : state.blocks.state.rows()) {
      const bool has = !state.plan.serves() || row.role != optim::StateRole::weights;
      EXPECT_TRUE(same_on_all_ranks(state.blocks.state[row.role]) || !has) << row.group;
    }
  }
  engine::BackendOptions options_;
};

TEST_F(ServedRun, GivesTheSameBitsFromEveryRunner) {
  config::TrainConfig first = served("lanes"), second = served("audit");
  first.optimizer.kind = second.optimizer.kind = optim::OptimizerKind::momentum;
  first.lr = second.lr = 0.01;
  run(first);
  second.runner = engine::RunnerKind::audit;
  run(second);
  expect_same_state(saved(first, 4), saved(second, 4));
}

TEST_F(ServedRun, GivesTheSameBitsWhereWorkersCopyToTheHostAndBack) {
  for (const int servers : {1, 2}) {
    if (servers >= world().size()) continue;
    config::TrainConfig host = served(concat("host", servers), servers);
    host.model = "resnet20";
    host.augment = data::Augment::crop;
    host.input_size = 8;
    host.optimizer.kind = optim::OptimizerKind::momentum;  // its decay is a term of the loss
    host.lr = 0.001;
    config::TrainConfig device = host;
    const Records expected = records_of(start(host));
    for (const engine::RunnerKind runner : {engine::RunnerKind::lanes, engine::RunnerKind::audit}) {
      device.runner = runner;
      device.run_dir = path(concat("device", servers, to_string(runner)));
      const Records found = run_on_devices(device);
      expect_same_state(saved(host, 4), saved(device, 4));
      for (std::size_t step = 0; step < 4; ++step) {
        EXPECT_EQ(found[step].cross_entropy, expected[step].cross_entropy);
        EXPECT_EQ(found[step].decay_term, expected[step].decay_term);
        EXPECT_EQ(found[step].samples, 12.0);
      }
    }
  }
}

TEST_F(ServedRun, GivesTheSameBitsInADrawnOrderWhereWorkersCopyToTheHostAndBack) {
  config::TrainConfig host = served("host");
  host.aggregation = {.asynchronous = true, .most_drift = 2, .arrival_order = 5};
  host.lr = 0.01;
  host.steps = 12;
  host.checkpoint_every = 6;
  config::TrainConfig device = host;
  device.run_dir = path("device");
  run(host);
  for (const std::int64_t steps : {6, 12}) {
    device.steps = steps;
    run_on_devices(device);
  }
  const run::Checkpoint a = saved(host, 12), b = saved(device, 12);
  expect_same_state(a, b);
  EXPECT_EQ(a.progress.batches, b.progress.batches);
}

/// A server does not count among the ranks that share the GPUs of a host, and plans no kernels.
TEST_F(ServedRun, CountsTheWorkersOfAHostForItsDevices) {
  config::TrainConfig c = served("run", std::min(2, world().size() - 1));
  run_on_devices(c);
  const int workers = world().size() - c.servers;
  EXPECT_EQ(options_.serves, world().rank() >= workers);
  if (options_.serves) {
    EXPECT_EQ(start(c)->device.tower, nullptr);
    return;
  }
  EXPECT_EQ(options_.local_rank, world().rank());
  EXPECT_EQ(options_.local_ranks, workers);
  EXPECT_NE(start(c)->device.tower, nullptr);
}

/// With any way to update, a checkpoint holds the state of all ranks: averages, momentum, statistics.
TEST_F(ServedRun, ResumesToTheSameBitsWithAllThatTheServersKeep) {
  for (const char* const model : {"tutorial", "resnet20"}) {
    config::TrainConfig straight = served(concat(model, "_straight"));
    straight.model = model;
    straight.augment = data::Augment::crop;
    straight.input_size = 8;
    if (std::string(model) == "tutorial") straight.augment = data::Augment::tutorial, straight.input_size = 0;
    straight.optimizer.kind = optim::OptimizerKind::adamw;
    straight.lr = 0.001;
    straight.steps = 5;
    straight.eval_every = 0.25;
    run(straight);
    config::TrainConfig parts = straight;
    parts.run_dir = path(concat(model, "_parts"));
    run_in_parts(parts, {2, 5});
    const run::Checkpoint a = saved(straight, 5), b = saved(parts, 5);
    expect_same_state(a, b);
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
  config::TrainConfig c = served("run");
  c.shuffle = data::Shuffle::shard;
  c.steps = 6;
  const auto state = start(c);
  run(*state);
  expect_same_state_on_all_ranks(*state);
  for (std::size_t step = 0; step < 6; ++step) {
    const engine::StepRecord& record = state->blocks.records[step];
    EXPECT_EQ(record.samples, 12.0);
    for (const double value : {record.cross_entropy, record.decay_term, record.correct}) {
      double first = value;
      world().broadcast(std::as_writable_bytes(std::span(&first, 1)));
      EXPECT_EQ(first, value) << "step " << step;
    }
    EXPECT_EQ(record.slots.size(), 8u * static_cast<std::size_t>(world().size() - 1));
  }
}

/// All workers but one make a step. All take part in evaluations and reach the end.
TEST_F(ServedRun, GoesOnWithoutTheLateAndMeetsWhereThereIsMoreToDo) {
  if (world().size() < 3) GTEST_SKIP() << "needs two workers and a server";
  config::TrainConfig c = served("first_ones");
  c.model = "resnet20";
  c.augment = data::Augment::crop;
  c.input_size = 8;
  c.aggregation.pushes = world().size() - 2;
  c.batch_size = 4;
  c.steps = 20;
  c.checkpoint_every = 7;
  c.check_every = 5;
  c.eval_every = 0.5;
  c.keep = 10;
  const std::string timeline = c.run_dir + "/timeline.h5";
  on_rank_zero([&] {
    stop_ = engine::kTraceRequest;
    std::filesystem::create_directories(c.run_dir);
    write_file(timeline, "of a start that updated in another way");
  });
  const auto state = start(c);
  run(*state);
  EXPECT_EQ(stop_, 0) << "a trace is refused, not requested forever";
  EXPECT_FALSE(std::filesystem::exists(timeline));
  const comm::PushCounts counts = state->blocks.update->push_counts().value();
  const auto computed = static_cast<std::uint64_t>(
      std::accumulate(counts.applied.begin(), counts.applied.end(), std::uint64_t{0}));
  EXPECT_EQ(computed, 20u * static_cast<std::uint64_t>(c.aggregation.pushes));
  expect_same_state_on_all_ranks(*state);
  const run::Checkpoint end = saved(c, 20);
  const std::uint64_t samples = 4 * static_cast<std::uint64_t>(c.aggregation.pushes);
  EXPECT_EQ(end.progress.samples_seen, 20 * samples) << "those that were applied";
  EXPECT_EQ(state->blocks.records[19].samples, static_cast<double>(samples));
  ASSERT_EQ(end.progress.batches.size(), counts.applied.size());
  for (std::size_t w = 0; w < counts.applied.size(); ++w)
    EXPECT_EQ(end.progress.batches[w], counts.applied[w] + counts.dropped[w]);
  for (const std::uint64_t step : {7u, 14u})
    EXPECT_TRUE(std::filesystem::exists(run::checkpoint_path(c.run_dir, step))) << step;
  c.steps = 25;
  const auto resumed = start(c);
  EXPECT_EQ(resumed->plan.progress.batches, end.progress.batches);
  EXPECT_TRUE(resumed->plan.serves() || *resumed->blocks.batch_counter.as<std::uint64_t>() ==
                                            end.progress.batches[static_cast<std::size_t>(world().rank())]);
  run(*resumed);
  EXPECT_EQ(saved(c, 25).progress.step, 25u);
}

/// A step with fewer samples than workers, resumed with another number of workers: each worker's samples
/// continue from the average position.
TEST_F(ServedRun, GoesOnWithAnotherNumberOfWorkersThanAStepHasSamples) {
  if (world().size() < 3) GTEST_SKIP() << "needs two workers and a server";
  config::TrainConfig c = served("few_samples", 2);
  c.aggregation = {.asynchronous = true};
  c.shuffle = data::Shuffle::shard;
  c.batch_size = 1;
  c.lr = 0.001;
  for (const auto& [servers, steps] : {std::pair(2, 6), {1, 12}, {1, 18}, {2, 24}}) {
    c.servers = servers;
    c.steps = steps;
    run(c);
    const run::Checkpoint end = saved(c, static_cast<std::uint64_t>(steps));
    const auto workers = static_cast<std::size_t>(world().size() - servers);
    EXPECT_EQ(end.progress.batches.size(), workers == 1 ? 0 : workers);
    EXPECT_EQ(end.progress.samples_seen, static_cast<std::uint64_t>(steps));
  }
}

/// Applying each worker's batch in turn equals applying all at once, up to rounding, if the rate is that of
/// one of them and no worker continues before all are applied.
TEST_F(ServedRun, StepsAsynchronouslyInStepAsItDoesSynchronously) {
  const int workers = world().size() - 1;
  config::TrainConfig together = served("together"), each = served("each");
  together.lr = 0.01;
  together.weight_decay = 0.0;
  together.steps = 3;
  each = together;
  each.run_dir = path("each");
  each.lr = together.lr / workers;
  each.steps = 3 * workers;
  each.aggregation = {.asynchronous = true, .most_drift = 0};
  const std::vector<run::NamedTensor> before = initial_weights(together);
  run(together);
  run(each);
  const run::Checkpoint of_together = saved(together, 3);
  const run::Checkpoint of_each = saved(each, static_cast<std::uint64_t>(each.steps));
  if (before.empty()) return;  // a server
  const auto& a = of_together.state[optim::StateRole::weights];
  const auto& b = of_each.state[optim::StateRole::weights];
  double largest = 0.0, moved = 0.0, apart = 0.0;
  for (std::size_t t = 0; t < a.size(); ++t) {
    for (std::size_t i = 0; i < a[t].values.size(); ++i) {
      const double w = a[t].values[i];
      largest = std::max(largest, std::abs(w));
      moved = std::max(moved, std::abs(w - before[t].values[i]));
      apart = std::max(apart, std::abs(w - b[t].values[i]));
    }
  }
  // Half a unit in the last place of the largest weight for each of the two, in each step; the gradients that follow from
  // such weights differ by as much again, times the rate, which is small.
  const double bound = 2.0 * 0x1.0p-24 * largest * 3.0 * (workers + 1);
  EXPECT_LE(apart, bound);
  EXPECT_GT(moved, 1000.0 * bound) << "else the bound says nothing";
}

TEST_F(ServedRun, GivesTheSameBitsInADrawnOrderAlsoAcrossAResume) {
  config::TrainConfig whole = served("whole");
  whole.aggregation = {.asynchronous = true, .most_drift = 2, .arrival_order = 3, .scales_rate = true};
  whole.shuffle = data::Shuffle::shard;
  whole.lr = 0.01;
  whole.checkpoint_every = 8;
  whole.keep = 5;
  whole.steps = 24;
  run(whole);
  config::TrainConfig parts = whole;
  parts.run_dir = path("parts");
  run_in_parts(parts, {16, 24});
  const run::Checkpoint a = saved(whole, 24), b = saved(parts, 24);
  expect_same_state(a, b);
  EXPECT_EQ(a.progress.batches, b.progress.batches);
  EXPECT_EQ(a.progress.samples_seen, 24u * static_cast<std::uint64_t>(whole.batch_size));
  // a resume without these options gets a note
  const auto is = [&](const char* setting, const char* value) {
    const std::string* const found = find_item(a.progress.resolved, setting);
    return found != nullptr && *found == value;
  };
  EXPECT_TRUE(is("max staleness", "2") && is("rate by staleness", "on") && is("arrival order", "3"));
}

/// With one worker the result equals that of one rank.
TEST_F(ServedRun, StepsAsynchronouslyWithOneWorkerAsWithoutServers) {
  if (world().size() != 2) GTEST_SKIP() << "needs one worker";
  config::TrainConfig all = served("all_of_one"), async = served("async_of_one");
  async.aggregation = {.asynchronous = true, .scales_rate = true};
  run(all);
  run(async);
  const run::Checkpoint last = saved(async, 4);
  expect_same_state(saved(all, 4), last);
  for (const char* const setting : {"max staleness", "arrival order"}) {
    const std::string* const found = find_item(last.progress.resolved, setting);
    EXPECT_TRUE(found != nullptr && *found == "none") << setting;
  }
}

/// --aggregate with the number of workers equals all workers.
TEST_F(ServedRun, GivesTheSameBitsWhereAllWorkersAreAskedForByNumber) {
  config::TrainConfig all = served("all"), number = served("number");
  number.aggregation.pushes = world().size() - 1;
  run(all);
  run(number);
  expect_same_state(saved(all, 4), saved(number, 4));
  EXPECT_TRUE(saved(number, 4).progress.batches.empty());
}

/// A worker with wrong weights is detected, even if it does not take part in every sum.
TEST_F(ServedRun, FindsAWorkerWithOtherWeightsWhereUpdatesAreOfTheFirstPushes) {
  if (world().size() < 3) GTEST_SKIP() << "needs two workers and a server";
  config::TrainConfig c = served("desync");
  c.aggregation.pushes = 1;
  c.checkpoint_every = 3;
  c.check_every = 1;
  c.steps = 5;
  const auto state = start(c);
  if (world().rank() == world().size() - 2)
    state->blocks.state[optim::StateRole::weights].as<float>()[0] += 1.0f;
  expect_agreed(ErrorKind::desync, "differ from those of rank", [&] { run(*state); });
}

TEST_F(ServedRun, StopsOnRequestOfItsLastServerWithACheckpoint) {
  for (const int fewer : {0, 1}) {
    config::TrainConfig c = served(concat("stopped", fewer));
    c.steps = 1000;
    c.aggregation.pushes = fewer * std::max(world().size() - 2, 1);
    const auto state = start(c);
    if (world().rank() == world().size() - 1) stop_ = engine::kStopRequest;
    expect_agreed(ErrorKind::stopped, "stopped on request at step", [&] { run(*state); });
    EXPECT_FALSE(run::list_checkpoints(Directory(c.run_dir)).empty());
  }
}

/// Where ranks are in different steps, all of them meet for a checkpoint by time.
TEST_F(ServedRun, MeetsForCheckpointsByTime) {
  if (world().size() < 3) GTEST_SKIP() << "needs two workers and a server";
  for (const bool asynchronous : {false, true}) {
    config::TrainConfig c = served(concat("timed", asynchronous));
    c.steps = 20;
    c.checkpoint_every = c.check_every = 1000;
    c.checkpoint_minutes = 1e-9;
    c.keep = 100;
    c.aggregation.asynchronous = asynchronous;
    if (!asynchronous) c.aggregation.pushes = world().size() - 2;
    run(c);
    EXPECT_GE(run::list_checkpoints(Directory(c.run_dir)).size(), 3u);
  }
}

TEST_F(ServedRun, EndsAllRanksWhereItDiverges) {
  for (const int fewer : {0, 1}) {
    config::TrainConfig c = served(concat("diverged", fewer));
    c.lr = 1e9;
    c.steps = 50;
    c.aggregation.pushes = fewer * std::max(world().size() - 2, 1);
    expect_agreed(ErrorKind::diverged, "diverged: the loss of step", [&] { run(c); });
  }
}

TEST_F(ServedRun, RefusesServersWithoutWorkers) {
  config::TrainConfig c = served("none");
  c.batch_size = 4;
  c.servers = world().size();
  c.servers = 1;
  c.aggregation.pushes = world().size();
  expect_agreed(ErrorKind::usage,
                concat("--aggregate ", c.aggregation.pushes, " waits for more gradients than"),
                [&] { start(c); });
  c.servers = world().size();
  expect_agreed(ErrorKind::usage,
                concat("--servers ", c.servers, " of ", c.servers, " ranks leaves no rank to compute"),
                [&] { start(c); });
}

}  // namespace
}  // namespace cifar_mpi::train
