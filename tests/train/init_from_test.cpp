#include <algorithm>
#include <filesystem>

#include "cifar_mpi/base/text.hpp"
#include "train/run_fixture.hpp"

/// Runs that begin with the weights of another run, on all ranks.
namespace cifar_mpi::train {
namespace {

using optim::StateRole;

class InitFrom : public RunTest {
 protected:
  /// Trains a run and returns the path of its last checkpoint.
  std::string finished(const config::TrainConfig& config) {
    run(config);
    return run::checkpoint_path(config.run_dir, static_cast<std::uint64_t>(config.steps));
  }
  config::TrainConfig source() const {
    config::TrainConfig c = config();
    c.run_dir = path("source");
    return c;
  }
  config::TrainConfig from(const std::string& checkpoint) const {
    config::TrainConfig c = config();
    c.init_from = checkpoint;
    return c;
  }
  static std::vector<run::NamedTensor> block(const SessionState& state, StateRole role) {
    return evaluation::export_block(*state.device.backend, *state.device.tower, state.plan.network.params,
                                    state.blocks.state[role]);
  }
};

TEST_F(InitFrom, BeginsOnEveryRankWithTheAveragesOfTheOtherAndNothingElse) {
  // A residual network, so that there are statistics; its optimizer and seed differ from the new run's.
  config::TrainConfig other = source();
  other.model = "resnet20";
  other.augment = data::Augment::crop;
  other.input_size = 16;
  other.optimizer.kind = optim::OptimizerKind::adamw;
  other.lr = 0.001;
  other.seed = 3;
  other.steps = 2;
  const std::string file = finished(other);
  const run::Checkpoint before = run::read_checkpoint(file);

  config::TrainConfig c = other;
  c.run_dir = path("run");
  c.seed = 4;
  c.optimizer.kind = optim::OptimizerKind::nesterov;
  c.steps = 3;
  c.init_from = file;
  const auto state = start(c);
  EXPECT_EQ(state->plan.progress.step, 0u);
  const auto averages =
      run::match_tensors(before.state[StateRole::average], state->plan.network.params, "the source");
  EXPECT_TRUE(
      std::any_of(averages.begin(), averages.end(), [](const auto& tensor) { return tensor.running; }));
  expect_same_tensors(block(*state, StateRole::weights), averages);
  expect_same_tensors(block(*state, StateRole::average), averages);
  for (const run::NamedTensor& tensor : block(*state, StateRole::momentum)) {
    EXPECT_EQ(std::count(tensor.values.begin(), tensor.values.end(), 0.0f),
              static_cast<std::ptrdiff_t>(tensor.values.size()))
        << tensor.name;
  }
  run(*state);
  EXPECT_EQ(state->blocks.records[0].samples, 12.0);
}

TEST_F(InitFrom, GoesOnWithoutTheFileToTheSameBits) {
  const std::string file = finished(source());
  config::TrainConfig straight = from(file);
  straight.run_dir = path("straight");
  const run::Checkpoint wanted = run::read_checkpoint(finished(straight));

  config::TrainConfig c = from(file);
  c.steps = 2;
  c.text = concat("init-from=\"", file, "\"\nsteps=2\n");
  const std::string first = finished(c);
  const std::string begun = run::read_checkpoint(first).provenance.initialized_from;
  EXPECT_TRUE(begun.starts_with("step_000000004.h5, step 4, test accuracy ")) << begun;
  EXPECT_EQ(read_file(first).find(path("")), std::string::npos);
  on_rank_zero([&] { std::filesystem::remove(file); });

  c.steps = 3;  // as a requeued job would
  run(c);
  config::TrainConfig without = c;
  without.init_from.clear();
  without.steps = 4;
  const auto state = start(without);
  EXPECT_EQ(state->plan.progress.step, 3u);
  run(*state);
  const run::Checkpoint found = saved(c, 4);
  EXPECT_EQ(found.provenance.initialized_from, begun);
  EXPECT_EQ(run::content_hash(found), run::content_hash(wanted));
}

TEST_F(InitFrom, TakesAnotherNumberOfClassesAndOtherNames) {
  const std::string file = finished(source());
  config::TrainConfig c = from(file);
  c.seed = 8;
  c.data = other_data([](data::DatasetInfo& info, data::Samples& train, data::Samples& test) {
    info.label_names = {"left", "right", "none"};
    for (data::Samples* samples : {&train, &test}) {
      for (std::uint8_t& label : samples->labels) label %= 3;
    }
  });
  const auto state = start(c);
  const std::vector<run::NamedTensor> fresh = evaluation::initial_tensors(state->plan.network.params, c.seed);
  const std::vector<run::NamedTensor> averages = run::read_checkpoint(file).state[StateRole::average];
  for (const run::NamedTensor& tensor : block(*state, StateRole::weights)) {
    const auto named = [&](const run::NamedTensor& other) { return other.name == tensor.name; };
    const bool is_new = tensor.name.starts_with("softmax_linear/");
    const auto& wanted = is_new ? fresh : averages;
    EXPECT_EQ(tensor.values, std::find_if(wanted.begin(), wanted.end(), named)->values) << tensor.name;
  }
  run(*state);
}

TEST_F(InitFrom, IsRefusedOnAllRanks) {
  config::TrainConfig c = from(path("nowhere.h5"));
  expect_agreed(ErrorKind::checkpoint, "nowhere.h5", [&] { start(c); });
  c.init_from = finished(source());
  config::TrainConfig other = c;
  other.model = "resnet20";
  expect_agreed(ErrorKind::checkpoint, "cannot start from a network of other shapes: conv1/weights of ",
                [&] { start(other); });
  // Another run's directory would resume that run.
  config::TrainConfig elsewhere = source();
  elsewhere.init_from = c.init_from;
  expect_agreed(ErrorKind::checkpoint, "holds a run that did not begin with the weights of another one",
                [&] { start(elsewhere); });
  EXPECT_TRUE(run::list_checkpoints(Directory(c.run_dir)).empty());
}

}  // namespace
}  // namespace cifar_mpi::train
