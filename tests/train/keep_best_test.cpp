#include <algorithm>
#include <filesystem>
#include <map>

#include "cifar_mpi/run/run_directory.hpp"
#include "report/metrics_reader.hpp"
#include "train/run_fixture.hpp"

namespace cifar_mpi::train {
namespace {

namespace fs = std::filesystem;
using Steps = std::vector<std::uint64_t>;

class KeepBest : public RunTest {
 protected:
  /// Evaluates after every second step; no checkpoint is due before the end.
  config::TrainConfig keeping() const {
    config::TrainConfig c = config();
    c.steps = 12;
    c.eval_every = 2.0 / 8.0;
    c.keep = 1;
    c.keep_best = true;
    return c;
  }
  static Steps kept(const config::TrainConfig& config) {
    return run::list_checkpoints(Directory(config.run_dir));
  }
  /// The step of the checkpoint that `best` is a link to; 0 without a link.
  static std::uint64_t linked(const config::TrainConfig& config) {
    const std::string link = config.run_dir + "/checkpoints/best";
    return fs::is_symlink(link) ? run::read_checkpoint(link).progress.step : 0;
  }
  /// The run's metrics.
  static std::map<std::uint64_t, double> evaluations(const config::TrainConfig& config) {
    std::map<std::uint64_t, double> accuracies;
    for (const auto& found : report::read_metrics(config.run_dir + "/metrics.jsonl").evaluations)
      accuracies[found.step] = found.test_accuracy;
    return accuracies;
  }
  static std::uint64_t first_best(const std::map<std::uint64_t, double>& accuracies) {
    return std::max_element(accuracies.begin(), accuracies.end(),
                            [](const auto& a, const auto& b) { return a.second < b.second; })
        ->first;
  }
  /// Changes the test accuracy in the checkpoint of a step.
  void rate(const config::TrainConfig& config, std::uint64_t step, double test_accuracy) {
    on_rank_zero([&] {
      const std::string file = run::checkpoint_path(config.run_dir, step);
      run::Checkpoint checkpoint = run::read_checkpoint(file);
      checkpoint.provenance.test_accuracy = test_accuracy;
      run::write_checkpoint(file, checkpoint);
    });
  }
};

TEST_F(KeepBest, WritesTheBestWhereNoCheckpointIsDue) {
  config::TrainConfig c = keeping();
  run(c);
  const std::map<std::uint64_t, double> accuracies = evaluations(c);
  ASSERT_EQ(accuracies.size(), 6u);
  const std::uint64_t best = first_best(accuracies);
  EXPECT_EQ(linked(c), best);
  EXPECT_NEAR(*run::recorded_test_accuracy(run::checkpoint_path(c.run_dir, best)), accuracies.at(best), 1e-4);
  EXPECT_EQ(kept(c), best == 12 ? Steps{12} : (Steps{best, 12}));
}

TEST_F(KeepBest, TakesTheBestOfThoseThatCouldBeWritten) {
  config::TrainConfig c = keeping();
  c.steps = 10;
  run(c);
  std::map<std::uint64_t, double> accuracies = evaluations(c);
  accuracies.erase(10);  // the last must be written
  const std::uint64_t lost = first_best(accuracies);
  config::TrainConfig full = c;
  full.run_dir = path("full");
  const auto state = start(full);
  on_rank_zero([&] { fs::create_directories(run::checkpoint_path(full.run_dir, lost) + "/occupied"); });
  run(*state);
  accuracies = evaluations(full);
  accuracies.erase(lost);
  EXPECT_EQ(linked(full), first_best(accuracies)) << lost;
}

TEST_F(KeepBest, KnowsTheBestFromTheFilesWhenTheRunGoesOn) {
  config::TrainConfig c = keeping();
  c.keep_best = false;
  c.checkpoint_every = 2;
  c.keep = 5;
  c.steps = 4;
  run(c);
  EXPECT_EQ(linked(c), 0u);
  rate(c, 2, 1.0);  // no later one is better
  c.keep_best = true;
  c.checkpoint_every = 1000;
  c.keep = 1;
  c.steps = 6;
  run(c);
  EXPECT_EQ(linked(c), 2u);
  EXPECT_EQ(kept(c), (Steps{2, 6}));

  rate(c, 2, 0.0);
  rate(c, 6, 0.0);  // and any later one is
  c.steps = 10;
  run(c);
  const std::map<std::uint64_t, double> accuracies = evaluations(c);
  const std::uint64_t better = accuracies.at(10) > accuracies.at(8) ? 10 : 8;
  ASSERT_GT(accuracies.at(better), 0.0) << "the test shows nothing";
  EXPECT_EQ(linked(c), better);
}

TEST_F(KeepBest, ComparesNoEvaluationsOfOtherViews) {
  config::TrainConfig c = keeping();
  c.steps = 4;
  run(c);
  rate(c, linked(c), 1.0);  // no later one is better
  c.views = 2;
  c.steps = 8;
  run(c);
  std::map<std::uint64_t, double> accuracies = evaluations(c);
  accuracies.erase(2), accuracies.erase(4);
  EXPECT_EQ(linked(c), first_best(accuracies));
  EXPECT_EQ(saved(c, 8).provenance.views, 2);
}

TEST_F(KeepBest, SetsTheLinkRightThatAKillLeftBehind) {
  config::TrainConfig c = keeping();
  c.checkpoint_every = 2;
  c.keep = 6;
  run(c);
  rate(c, 4, 1.0);
  const std::string link = c.run_dir + "/checkpoints/best";
  for (const char* left : {"step_000000002.h5", "step_000000099.h5", ""}) {
    on_rank_zero([&] {
      fs::remove(link);
      if (*left != '\0') fs::create_symlink(left, link);
    });
    run(c);  // it is finished: nothing is written
    EXPECT_EQ(linked(c), 4u) << left;
  }
  EXPECT_EQ(kept(c), (Steps{2, 4, 6, 8, 10, 12}));
  c.keep_best = false;
  run(c);
  EXPECT_EQ(linked(c), 4u) << "nothing went, so it is still the best";
}

}  // namespace
}  // namespace cifar_mpi::train
