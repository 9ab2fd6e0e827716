#include <cmath>
#include <limits>

#include "reference/reference.hpp"
#include "train/run_fixture.hpp"

namespace cifar_mpi::train {
namespace {

/// The images of global batch 0 as the reference sees them, in NHWC, and their labels.
struct ReferenceBatch {
  reference::Array x;
  std::vector<std::uint8_t> labels;
};

/// The twelve samples of a step in pieces of two (on four ranks one); a rank has several pieces.
config::TrainConfig in_batches(config::TrainConfig config, int ranks) {
  config.batch_size = ranks == 4 ? 1 : 2;
  config.accumulate = 12 / ranks / config.batch_size;
  return config;
}

ReferenceBatch first_global_batch(const SessionState& state) {
  const data::DatasetFile file(state.plan.config.data);
  const data::Samples samples = file.read(data::Split::train, {0, state.plan.info.train_count});
  const data::SampleOrder order(data::Shuffle::global, state.plan.config.seed, state.plan.info.train_count, 0,
                                1, static_cast<int>(state.plan.sizes.global_batch));
  const auto image_bytes = static_cast<std::size_t>(state.plan.info.image.count());
  std::vector<float> image(static_cast<std::size_t>(state.plan.network.augment.output().count()));
  ReferenceBatch batch;
  for (std::uint64_t i = 0; i < state.plan.sizes.global_batch; ++i) {
    const data::SampleRef sample = order.at(0, i);
    data::augment_reference(
        state.plan.network.augment,
        data::draw_augment(state.plan.network.augment, state.plan.config.seed, sample.epoch, sample.id), 0.0,
        std::span(samples.images).subspan(sample.id * image_bytes, image_bytes), image);
    batch.x.insert(batch.x.end(), image.begin(), image.end());
    batch.labels.push_back(samples.labels[sample.id]);
  }
  return batch;
}

double norm(const reference::Array& values) {
  double sum = 0.0;
  for (const double v : values) sum += v * v;
  return std::sqrt(sum);
}

using Session = RunTest;

/// One step from an empty run directory.
void expect_reference_gradient(SessionState& state) {
  const ReferenceBatch batch = first_global_batch(state);
  const auto expected = reference::loss_and_gradients(
      state.plan.network.net, state.plan.network.params,
      reference::initial_params(state.plan.network.params, state.plan.config.seed), batch.x, batch.labels,
      static_cast<int>(batch.labels.size()), static_cast<double>(batch.labels.size()));
  run_loop(state);

  // After the control block come the sums of the step, in the physical layout.
  const std::span<const float> grads = state.blocks.update->block().grads();
  const auto& layout = state.device.tower->layout();
  for (std::size_t p = 0; p < state.plan.network.params.size(); ++p) {
    std::vector<float> sum(expected.grads[p].size());
    state.device.tower->to_logical(p, grads.subspan(layout.entries[p].offset, layout.entries[p].floats), sum);
    reference::Array difference(sum.size());
    for (std::size_t i = 0; i < sum.size(); ++i) difference[i] = sum[i] - expected.grads[p][i];
    // Rounding errors of a chain of sums of up to k terms add up like a random walk: eps·sqrt(k), k the 576
    // pixels of conv1 times the 12 samples; 4 for the nine layers between loss and conv1, whose errors add in
    // squares (3), and a margin.
    const double tolerance = 4.0 * std::numeric_limits<float>::epsilon() * std::sqrt(576.0 * 12.0);
    EXPECT_LE(norm(difference), tolerance * norm(expected.grads[p])) << state.plan.network.params[p].name;
  }
  EXPECT_NEAR(state.blocks.records[0].cross_entropy, expected.loss_sum / 12.0,
              1e-5 * expected.loss_sum / 12.0);
  EXPECT_EQ(state.blocks.records[0].samples, 12.0);
}

TEST_F(Session, SumsTheGradientOfTheGlobalBatchAsTheDoubleReferenceHasIt) {
  config::TrainConfig c = config();
  c.steps = 1;
  c.seed = 5;
  expect_reference_gradient(*start(c));
}

TEST_F(Session, SumsTheGradientsOfAllBatchesOfAStep) {
  config::TrainConfig c = in_batches(config(), world().size());
  c.steps = 1;
  c.seed = 5;
  expect_reference_gradient(*start(c));
}

/// Every batch of every rank is normalized by its own statistics, and the running ones move towards their mean.
TEST_F(Session, AveragesTheStatisticsOfAllBatchesOfAStep) {
  config::TrainConfig c = in_batches(config(), world().size());
  c.model = "resnet20";
  c.augment = data::Augment::crop;
  c.input_size = 8;
  c.steps = 1;
  const auto state = start(c);
  const ReferenceBatch batch = first_global_batch(*state);
  const model::ParamTable& params = state->plan.network.params;
  const std::size_t pieces = 12 / static_cast<std::size_t>(c.batch_size), image = batch.x.size() / 12;
  const auto size = static_cast<std::size_t>(c.batch_size);
  reference::Params mean;
  for (std::size_t piece = 0; piece < pieces; ++piece) {
    const auto x = batch.x.begin() + static_cast<std::ptrdiff_t>(piece * size * image);
    const auto found = reference::loss_and_gradients(
        state->plan.network.net, params, reference::initial_params(params, c.seed),
        {x, x + static_cast<std::ptrdiff_t>(size * image)},
        std::span(batch.labels).subspan(piece * size, size), c.batch_size, 12.0);
    if (mean.empty()) mean = found.grads;
    for (std::size_t p = 0; piece > 0 && p < params.size(); ++p) {
      for (std::size_t i = 0; i < mean[p].size(); ++i) mean[p][i] += found.grads[p][i];
    }
  }
  run(*state);
  const run::StateTensors after =
      state->blocks.state.read(*state->device.backend, *state->device.tower, params);
  std::size_t statistics = 0;
  for (std::size_t p = 0; p < params.size(); ++p) {
    if (params[p].role != model::ParamRole::running) continue;
    ++statistics;
    const double initial = params[p].part == model::ParamPart::variance ? 1.0 : 0.0;
    const std::vector<float>& values = after[optim::StateRole::weights][p].values;
    ASSERT_EQ(values.size(), mean[p].size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double wanted = 0.9 * initial + 0.1 * mean[p][i] / static_cast<double>(pieces);
      EXPECT_NEAR(values[i], wanted, 1e-5 * std::max(1.0, std::abs(wanted))) << params[p].name << ' ' << i;
    }
  }
  EXPECT_EQ(statistics, 2u * 19u);
}

TEST_F(Session, LeavesIdenticalBitsOnEveryRankAfterFiftySteps) {
  config::TrainConfig c = config();
  c.steps = 50;
  c.shuffle = data::Shuffle::shard;
  const auto state = start(c);
  run(*state);
  for (const auto role : {optim::StateRole::weights, optim::StateRole::average})
    EXPECT_TRUE(same_on_all_ranks(state->blocks.state[role]));
}

TEST_F(Session, GivesTheSameBitsFromEveryRunner) {
  std::vector<run::Checkpoint> results;
  for (const auto runner :
       {engine::RunnerKind::serial, engine::RunnerKind::lanes, engine::RunnerKind::audit}) {
    config::TrainConfig c = config();
    c.run_dir = path("run" + std::to_string(static_cast<int>(runner)));
    c.runner = runner;
    run(c);
    results.push_back(saved(c, 4));
  }
  for (const run::Checkpoint& result : results) expect_same_state(result, results.front());
}

TEST_F(Session, ResumesToTheSameBits) {
  config::TrainConfig straight = config();
  straight.steps = 7;
  straight.run_dir = path("straight");
  run(straight);
  run_in_parts(config(), {3, 4, 7});
  const run::Checkpoint a = saved(straight, 7), b = saved(config(), 7);
  expect_same_state(a, b);
  EXPECT_EQ(a.progress.step, b.progress.step);
  EXPECT_EQ(a.progress.samples_seen, 7u * 12u);
  EXPECT_EQ(a.progress.identity, b.progress.identity);
  EXPECT_EQ(a.progress.resolved, b.progress.resolved);
}

/// The optimizer's state is part of the checkpoint.
TEST_F(Session, ResumesToTheSameBitsWithWhatItsOptimizerKeeps) {
  for (const auto kind : {optim::OptimizerKind::muon, optim::OptimizerKind::adamw}) {
    config::TrainConfig straight = config();
    straight.optimizer.kind = kind;
    straight.optimizer.normalize_every = kind == optim::OptimizerKind::muon ? 3 : 0;
    straight.lr = 0.001;
    straight.clip_norm = 0.5;
    straight.steps = 5;
    const std::string name(to_string(kind));
    straight.run_dir = path(name + "_straight");
    run(straight);
    config::TrainConfig parts = straight;
    parts.run_dir = path(name + "_parts");
    run_in_parts(parts, {2, 5});
    SCOPED_TRACE(name);
    const run::Checkpoint a = saved(straight, 5);
    expect_same_state(a, saved(parts, 5));
    for (const optim::StateRow& row : optim::state_rows(kind)) {
      EXPECT_TRUE(std::ranges::any_of(a.state[row.role].front().values, [](float v) { return v != 0.0f; }))
          << row.group;
    }
    config::TrainConfig other = parts;
    other.optimizer = {.kind = optim::OptimizerKind::nesterov};
    expect_agreed(ErrorKind::checkpoint, "its --optimizer is " + name + ", this one's is nesterov",
                  [&] { start(other); });
  }
}

/// So are the statistics of BatchNorm and their averages.
TEST_F(Session, ResumesAResidualNetworkToTheSameBits) {
  config::TrainConfig straight = config();
  straight.model = "resnet20";
  straight.augment = data::Augment::crop;
  straight.normalize = data::Normalize::dataset;
  straight.flip = data::Flip::alternate;
  straight.input_size = 16;
  straight.optimizer.kind = optim::OptimizerKind::nesterov;
  straight.steps = 3;
  straight.run_dir = path("straight");
  run(straight);
  config::TrainConfig parts = straight;
  parts.run_dir = path("parts");
  run_in_parts(parts, {2, 3});
  const run::Checkpoint a = saved(straight, 3);
  expect_same_state(a, saved(parts, 3));
  for (const optim::StateRow& row : optim::state_rows(straight.optimizer.kind)) {
    std::size_t statistics = 0;
    for (const run::NamedTensor& tensor : a.state[row.role]) {
      if (!tensor.running) continue;
      ++statistics;
      const float initial = tensor.name.ends_with("/variance") ? 1.0f : 0.0f;
      EXPECT_TRUE(std::ranges::any_of(tensor.values, [&](float v) { return v != initial; })) << tensor.name;
    }
    EXPECT_EQ(statistics, row.running != nullptr ? 2u * 19u : 0u);
  }
}

TEST_F(Session, RefusesAStateOfAnotherOptimizerThanItsRuns) {
  run(config());
  on_rank_zero([&] {
    const std::string file = run::checkpoint_path(config().run_dir, 4);
    run::Checkpoint checkpoint = run::read_checkpoint(file);
    checkpoint.optimizer.kind = optim::OptimizerKind::momentum;
    checkpoint.state[optim::StateRole::momentum] = checkpoint.state[optim::StateRole::weights];
    run::write_checkpoint(file, checkpoint);
  });
  expect_agreed(ErrorKind::checkpoint, "holds the state of the optimizer momentum, but is of a run with sgd",
                [&] { start(config()); });
}

TEST_F(Session, RefusesAnotherLengthWhereTheRateOrLookaheadDependsOnIt) {
  config::TrainConfig cosine = config(), slow = config();
  cosine.schedule = optim::ScheduleKind::cosine;
  slow.lookahead = 2;
  slow.run_dir = path("slow");
  for (config::TrainConfig c : {cosine, slow}) {
    run(c);
    c.steps = 6;
    expect_agreed(
        ErrorKind::checkpoint,
        "its length in steps is 4, this one's is 6; its learning rate or its lookahead depends on it",
        [&] { start(c); });
  }
}

TEST_F(Session, StopsOnAllRanksWhenOneIsAskedAndGoesOnLater) {
  config::TrainConfig c = config();
  c.steps = 30;
  if (world().rank() == world().size() - 1) stop_ = 1;
  expect_agreed(ErrorKind::stopped, "stopped on request at step", [&] { run(c); });
  const std::vector<std::uint64_t> steps = run::list_checkpoints(Directory(c.run_dir));
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_GE(steps.front(), 1u);
  EXPECT_LT(steps.front(), 30u);
  world().barrier();
  stop_ = 0;
  run(c);
  EXPECT_EQ(run::list_checkpoints(Directory(c.run_dir)).back(), 30u);
}

TEST_F(Session, EndsADivergedRunOnAllRanksAndKeepsTheLastCheckpoint) {
  config::TrainConfig c = config();
  c.steps = 2;
  run(c);
  const std::string before = read_file(run::checkpoint_path(c.run_dir, 2));
  config::TrainConfig wild = config();
  wild.lr = 1e8;
  wild.run_dir = path("wild");
  wild.steps = 40;
  expect_agreed(ErrorKind::diverged, "diverged: the loss of step", [&] { run(wild); });
  EXPECT_TRUE(run::list_checkpoints(Directory(wild.run_dir)).empty());
  EXPECT_EQ(read_file(run::checkpoint_path(c.run_dir, 2)), before);
}

TEST_F(Session, RefusesARunDirectoryOfAnotherConfiguration) {
  run(config());
  config::TrainConfig other = config();
  other.lr = 0.05;
  expect_agreed(ErrorKind::checkpoint, "--lr is 0.1, this one's is 0.05", [&] { start(other); });
  config::TrainConfig never = config();
  never.resume = "never";
  expect_agreed(ErrorKind::checkpoint, "already holds a run at step 4", [&] { start(never); });
}

TEST_F(Session, GoesOnFromTheCheckpointBeforeADamagedOne) {
  config::TrainConfig c = config();
  c.checkpoint_every = 2;
  run(c);
  on_rank_zero([&] {
    const std::string newest = run::checkpoint_path(c.run_dir, 4);
    std::filesystem::resize_file(newest, std::filesystem::file_size(newest) / 2);
  });
  EXPECT_EQ(start(c)->plan.progress.step, 2u);
}

TEST_F(Session, CountsEveryTestImageOnceOnAnyNumberOfRanks) {
  const auto state = start(config());
  const evaluation::Accuracy accuracy = state->programs.evaluator->run();
  EXPECT_EQ(accuracy.count(), kTestSamples);
  const evaluation::Accuracy again = state->programs.evaluator->run();
  EXPECT_EQ(accuracy.correct(), again.correct());
  EXPECT_EQ(accuracy.cross_entropy, again.cross_entropy);
  EXPECT_TRUE(std::isfinite(accuracy.cross_entropy));
}

TEST_F(Session, LearnsASimpleSet) {
  config::TrainConfig c = config();
  c.steps = 120;
  c.augment = data::Augment::none;
  c.ema_decay = 0.9;
  const auto state = start(c);
  run(*state);
  double late = 0.0;
  for (std::uint64_t s = 110; s < 120; ++s) late += state->blocks.records[s].cross_entropy / 10.0;
  // Chance is ln 10 = 2.3; the set is eight batches that repeat in every epoch.
  EXPECT_LT(late, 0.5 * std::log(10.0));
}

TEST_F(Session, ReplacesItsConfigurationAtOnce) {
  const config::TrainConfig c = config();
  on_rank_zero([&] {
    std::filesystem::create_directories(c.run_dir);
    write_file(c.run_dir + "/config.toml", "of the start before");
    std::filesystem::create_hard_link(c.run_dir + "/config.toml", path("the_same_file"));
  });
  start(c);
  world().barrier();
  EXPECT_EQ(read_file(c.run_dir + "/config.toml"), c.text);
  EXPECT_EQ(read_file(path("the_same_file")), "of the start before") << "emptied before it was written";
}

TEST_F(Session, SaysWhereItsConfigurationCouldNotBeWritten) {
  const config::TrainConfig c = config();
  on_rank_zero([&] { std::filesystem::create_directories(c.run_dir + "/config.toml/occupied"); });
  expect_agreed(ErrorKind::io, c.run_dir + "/config.toml", [&] { start(c); });
  config::TrainConfig other = config();
  other.run_dir = path("data.h5") + "/run";
  expect_agreed(ErrorKind::io, "choose another with --run-dir", [&] { start(other); });
}

TEST_F(Session, WritesOneLineOfMetricsPerReport) {
  config::TrainConfig c = config();
  c.log_every = 1;
  c.steps = 3;
  run(c);
  const std::vector<std::string> lines = metrics_with(c, "{\"step\":");
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_TRUE(lines[0].starts_with("{\"step\":1,\"epoch\":0.125,\"cross_entropy\":")) << lines[0];
  EXPECT_TRUE(lines[2].starts_with("{\"step\":3,")) << lines[2];
  // The speed in the last line is that of its steps, although its record is read right after the previous
  // one.
  for (const std::string& line : {lines[0], lines[1], lines[2]}) {
    const std::string key = "\"images_per_second\":";
    const double speed = std::stod(line.substr(line.find(key) + key.size()));
    EXPECT_GT(speed, 1.0) << line;
    EXPECT_LT(speed, 50000.0) << line;
  }
  EXPECT_NE(lines[3].find("\"test_accuracy\":"), std::string::npos) << lines[3];
}

}  // namespace
}  // namespace cifar_mpi::train
