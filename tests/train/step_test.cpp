#include <cmath>
#include <string>
#include <vector>

#include "cifar_mpi/evaluation/evaluate_checkpoint.hpp"
#include "cifar_mpi/run/run_directory.hpp"
#include "train/run_fixture.hpp"
#include "train/session_state.hpp"

/// The effects of options on the programs of a run.
namespace cifar_mpi::train {
namespace {

using Step = RunTest;

/// Σ weight_decay · ½‖w‖² over the parameters that decay, in double.
double decay_term(const model::ParamTable& params, const std::vector<run::NamedTensor>& tensors,
                  double factor) {
  double sum = 0.0;
  for (std::size_t p = 0; p < params.size(); ++p) {
    if (params[p].weight_decay == 0.0f) continue;
    for (const float w : tensors[p].values)
      sum += factor * 0.5 * static_cast<double>(w) * static_cast<double>(w);
  }
  return sum;
}

TEST_F(Step, ReportsTheDecayTermOfAllBuckets) {
  for (const double factor : {0.004, 0.02}) {
    config::TrainConfig c = config();
    c.weight_decay = factor;
    c.steps = 1;
    c.bucket_mib = 0.1;
    c.run_dir = path("decay_" + std::to_string(factor));
    const auto state = start(c);
    const double wanted = decay_term(state->plan.network.params,
                                     evaluation::initial_tensors(state->plan.network.params, c.seed), factor);
    run(*state);
    EXPECT_NEAR(state->blocks.records[0].decay_term, wanted, 1e-5 * wanted)
        << factor;  // the factor is a float
  }
}

TEST_F(Step, MovesByTheRateThatWasAskedFor) {
  std::vector<std::vector<float>> moves;
  for (const double rate : {0.01, 0.04}) {
    config::TrainConfig c = config();
    c.lr = rate;
    c.steps = 1;
    c.weight_decay = 0.0;
    c.ema_decay = 0.0;  // the average is then the weights themselves
    c.run_dir = path("rate_" + std::to_string(rate));
    run(c);
    const run::Checkpoint after = saved(c, 1);
    const auto state = start(c);
    const std::vector<run::NamedTensor> now =
        run::match_tensors(after.state[optim::StateRole::weights], state->plan.network.params, "it");
    const std::vector<run::NamedTensor> before =
        evaluation::initial_tensors(state->plan.network.params, c.seed);
    const std::vector<run::NamedTensor> average =
        run::match_tensors(after.state[optim::StateRole::average], state->plan.network.params, "it");
    for (std::size_t i = 0; i < 10; ++i) EXPECT_FLOAT_EQ(average[1].values[i], now[1].values[i]);
    EXPECT_EQ(after.progress.seed, c.seed);
    moves.emplace_back();
    for (std::size_t i = 0; i < now[1].values.size(); ++i)  // the last layer's biases begin at zero: exact
      moves.back().push_back(now[1].values[i] - before[1].values[i]);
  }
  ASSERT_EQ(moves[0].size(), 10u);
  for (std::size_t i = 0; i < 10; ++i) {
    EXPECT_NE(moves[0][i], 0.0f);
    EXPECT_FLOAT_EQ(moves[1][i], 4.0f * moves[0][i]);
  }
}

TEST_F(Step, BeginsWithTheValuesOfItsSeed) {
  config::TrainConfig c = config();
  c.seed = 5;
  c.steps = 1;
  const auto state = start(c);
  const std::vector<run::NamedTensor> one = evaluation::initial_tensors(state->plan.network.params, 1);
  const std::vector<run::NamedTensor> five = evaluation::initial_tensors(state->plan.network.params, 5);
  EXPECT_NE(one[0].values, five[0].values);
  expect_same_tensors(
      evaluation::export_block(*state->device.backend, *state->device.tower, state->plan.network.params,
                               state->blocks.state[optim::StateRole::weights]),
      five);
}

TEST_F(Step, WhitensTheImagesAndTrainsTheBiasesOfThatForSevenSteps) {
  config::TrainConfig c = config();
  c.model = "fast94";
  c.input_size = 24;  // 16 is too small for a batch of one
  c.batch_size = 1;
  c.lr = 0.01;
  std::vector<std::vector<run::NamedTensor>> after;
  for (const int steps : {6, 7, 8}) {
    c.steps = steps;
    run(c);
    const auto state = start(c);
    const model::ParamTable& params = state->plan.network.params;
    after.push_back(run::match_tensors(
        run::read_checkpoint(run::checkpoint_path(c.run_dir, static_cast<std::uint64_t>(steps)))
            .state[optim::StateRole::weights],
        params, "it"));
    std::vector<run::NamedTensor> first = evaluation::initial_tensors(params, c.seed);
    const std::vector<run::NamedTensor> drawn = first;
    evaluation::whiten(first, state->plan.network, data::DatasetFile(c.data));
    for (std::size_t p = 0; p < params.size(); ++p) {
      if (params[p].name != "whitening/weights") continue;
      EXPECT_EQ(after.back()[p].values, first[p].values);
      EXPECT_NE(after.back()[p].values, drawn[p].values);
    }
    world().barrier();
  }
  for (std::size_t i = 0; i < after[0].size(); ++i) {
    const bool of_whitening = after[0][i].name == "whitening/biases";
    if (!of_whitening && after[0][i].name != "head/weights") continue;
    EXPECT_NE(after[0][i].values, after[1][i].values) << after[0][i].name;
    EXPECT_EQ(after[1][i].values == after[2][i].values, of_whitening) << after[0][i].name;
  }
}

TEST_F(Step, DistortsOnlyWhereItIsAskedTo) {
  std::vector<double> losses;
  std::vector<double> tests;
  for (const auto augment : {data::Augment::tutorial, data::Augment::none}) {
    config::TrainConfig c = config();
    c.augment = augment;
    c.steps = 1;
    c.run_dir = path(std::string("augment_") + std::string(to_string(augment)));
    const auto state = start(c);
    tests.push_back(state->programs.evaluator->run().cross_entropy);
    run(*state);
    losses.push_back(state->blocks.records[0].cross_entropy);
  }
  EXPECT_NE(losses[0], losses[1]);
  EXPECT_EQ(tests[0], tests[1]) << "evaluation always takes the centre crop";
  // Small initial weights give all ten classes about the same probability.
  EXPECT_NEAR(tests[0], std::log(10.0), 0.5);
}

TEST_F(Step, CountsAsCorrectOnlyWhatIsAndEvaluatesTheAskedWeights) {
  config::TrainConfig c = config();
  c.steps = 6;
  const auto state = start(c);
  const evaluation::Accuracy untrained = state->programs.evaluator->run();
  EXPECT_LT(untrained.correct(), untrained.count());
  EXPECT_GE(untrained.classes[3].count, kTestSamples - 20u);
  run(*state);
  on_rank_zero([&] {
    // After so few steps the weights are nearly their averages.
    run::Checkpoint checkpoint = saved(c, 6);
    for (run::NamedTensor& tensor : checkpoint.state[optim::StateRole::weights]) {
      if (tensor.name == "softmax_linear/weights")
        for (float& w : tensor.values) w *= 100.0f;
    }
    run::write_checkpoint(run::checkpoint_path(c.run_dir, 6), checkpoint);
  });
  evaluation::EvaluationConfig evaluation;
  evaluation.data = c.data;
  evaluation.threads = 1;
  evaluation.precision = engine::Precision::fp32;
  std::vector<double> found;
  for (const evaluation::Weights weights : {evaluation::Weights::ema, evaluation::Weights::raw}) {
    evaluation.weights = weights;
    const std::string file = run::checkpoint_path(c.run_dir, 6);
    found.push_back(
        evaluation::evaluate_checkpoint(evaluation, file, world(), platform, heart_).accuracy.cross_entropy);
  }
  const double ema = state->programs.evaluator->run().cross_entropy;
  EXPECT_NEAR(found[0], ema, 1e-4 * ema);  // another batch size, other kernels
  EXPECT_GT(std::abs(found[1] - ema), 1e-2 * ema);
}

TEST_F(Step, ResolvesWhatIsLeftOpenAndSaysSo) {
  config::TrainConfig c = config();
  c.bucket_mib = 0.5;
  const RunFingerprint resolved = start(c)->plan.progress.resolved;
  const auto has = [&](const char* name, const std::string& value) {
    return std::find(resolved.begin(), resolved.end(), std::pair<std::string, std::string>{name, value}) !=
           resolved.end();
  };
  EXPECT_TRUE(has("precision", "fp32"));
  EXPECT_TRUE(has("threads", "1"));
  EXPECT_TRUE(has("ranks", std::to_string(world().size())));
  EXPECT_TRUE(has("all-reduce", world().size() == 1 ? "ring" : "window"));
  EXPECT_TRUE(has("update", "all-reduce"));
  EXPECT_TRUE(has("bucket MiB", "0.5"));
  EXPECT_EQ(read_file(c.run_dir + "/config.toml"), c.text);
  config::TrainConfig open = config();
  open.threads = 0;
  open.run_dir = path("open");
  EXPECT_GE(start(open)->plan.config.threads, 1);
  if (world().size() == 3) return;
  open.reproducible = true;
  open.micro_shards = 4;
  open.run_dir = path("reproducible");
  EXPECT_EQ(start(open)->plan.config.threads, 1);
}

TEST_F(Step, ChecksItsConfigurationOnItsOwn) {
  config::TrainConfig c = config();
  c.keep = 0;
  expect_agreed(ErrorKind::usage, "--keep must be at least 1", [&] { start(c); });
}

TEST_F(Step, GoesOnWhereWhatItWouldTakeOverDoesNotWork) {
  config::TrainConfig c = config();
  c.all_reduce = "window";
  c.steps = 2;
  run(c);
  on_rank_zero([&] {
    run::Checkpoint checkpoint = saved(c, 2);
    checkpoint.progress.resolved[0].second = "tf32";  // which no CPU has
    run::write_checkpoint(run::checkpoint_path(c.run_dir, 2), checkpoint);
  });
  config::TrainConfig other = config();
  other.precision = engine::Precision::automatic;
  other.wire = comm::Wire::bf16;  // which the window does not know
  const auto state = start(other);
  EXPECT_NE(state->plan.config.precision, engine::Precision::automatic);
  EXPECT_NE(state->plan.config.precision, engine::Precision::tf32);
  EXPECT_TRUE(state->blocks.update->name().starts_with("auto")) << state->blocks.update->name();
  other.all_reduce = "window";
  expect_agreed(ErrorKind::usage, "--wire bf16", [&] { start(other); });
  other.wire = comm::Wire::fp32;
  other.precision = engine::Precision::tf32;
  expect_agreed(ErrorKind::device, "tf32", [&] { start(other); });
}

}  // namespace
}  // namespace cifar_mpi::train
