#include "run/run_checkpoints.hpp"

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "train/run_fixture.hpp"

namespace cifar_mpi::train {
namespace {

namespace fs = std::filesystem;

class RunCheckpointsTest : public RunTest {
 protected:
  /// Makes the checkpoint of this step impossible to write.
  void obstruct(const std::string& run_dir, std::uint64_t step) {
    on_rank_zero([&] { fs::create_directories(run::checkpoint_path(run_dir, step) + "/occupied"); });
  }
};

TEST_F(RunCheckpointsTest, HoldTheSameContentHoweverOftenTheRunWasInterrupted) {
  config::TrainConfig straight = config();
  straight.steps = 9;
  straight.checkpoint_every = 2;
  straight.run_dir = path("straight");
  run(straight);
  config::TrainConfig parts = straight;
  parts.run_dir = path("parts");
  parts.checkpoint_every = 3;
  for (int stops = 0; stops < 2; ++stops) {
    stop_ = 1;
    expect_agreed(ErrorKind::stopped, "stopped on request", [&] { run(parts); });
    stop_ = 0;
  }
  run(parts);
  const run::Checkpoint a = saved(straight, 9);
  const run::Checkpoint b = saved(parts, 9);
  EXPECT_EQ(run::content_hash(a), run::content_hash(b));
  EXPECT_EQ(a.provenance.test_accuracy, b.provenance.test_accuracy);
  EXPECT_NE(run::content_hash(saved(straight, 8)), run::content_hash(a));
}

/// With a time this short nearly each step has one; a run that is killed resumes from the newest.
TEST_F(RunCheckpointsTest, AreMadeByTimeOnAllRanksAtTheSameStepsAndChangeNoBits) {
  const optim::LocalSteps two{.steps = 2};
  const bool may_serve = world().size() > 1;
  for (const auto update :
       {comm::UpdateKind::all_reduce, comm::UpdateKind::local, comm::UpdateKind::server}) {
    if (update == comm::UpdateKind::server && !may_serve) continue;
    config::TrainConfig straight = config();
    straight.steps = 12;
    straight.update = update;
    if (update == comm::UpdateKind::local) straight.local = two;
    straight.checkpoint_minutes = 0.0;
    straight.run_dir = path(concat("straight", static_cast<int>(update)));
    run(straight);
    config::TrainConfig timed = straight;
    timed.run_dir = path(concat("timed", static_cast<int>(update)));
    timed.checkpoint_minutes = 1e-9;
    timed.keep = 100;
    run(timed);
    EXPECT_EQ(run::list_checkpoints(Directory(straight.run_dir)), std::vector<std::uint64_t>{12});
    const std::vector<std::uint64_t> steps = run::list_checkpoints(Directory(timed.run_dir));
    EXPECT_GE(steps.size(), 3u);
    EXPECT_EQ(run::content_hash(saved(straight, 12)), run::content_hash(saved(timed, 12)));
  }
}

TEST_F(RunCheckpointsTest, GoOnAfterOneThatCouldNotBeWritten) {
  config::TrainConfig c = config();
  c.steps = 6;
  c.checkpoint_every = 2;
  const auto state = start(c);
  obstruct(c.run_dir, 2);
  EXPECT_NO_THROW(run(*state));
  EXPECT_EQ(saved(c, 4).progress.step, 4u);
  EXPECT_EQ(saved(c, 6).progress.step, 6u);
}

TEST_F(RunCheckpointsTest, EndTheRunWithAnErrorWhenItsLastStateIsNotOnTheDisk) {
  config::TrainConfig c = config();
  c.steps = 4;
  c.checkpoint_every = 2;
  const auto state = start(c);
  obstruct(c.run_dir, 4);
  expect_agreed(ErrorKind::io, "the checkpoint of step 4 could not be written (that of step 2 is the newest",
                [&] { run(*state); });
  EXPECT_EQ(state->blocks.records[3].samples, 12.0);  // it trained to its end
}

TEST_F(RunCheckpointsTest, SayAtAStopThatTheStateIsNotOnTheDisk) {
  config::TrainConfig c = config();
  c.steps = 30;
  stop_ = 1;
  const auto state = start(c);
  for (std::uint64_t step = 1; step < 5; ++step) obstruct(c.run_dir, step);
  expect_agreed(ErrorKind::io, "could not be written (this process has written none yet)",
                [&] { run(*state); });
}

TEST_F(RunCheckpointsTest, LetARunThatDiedInItsLastEvaluationDoOnlyThat) {
  config::TrainConfig c = config();
  c.log_every = 1;
  run(c);
  const std::string file = run::checkpoint_path(c.run_dir, 4);
  run::Checkpoint done = run::read_checkpoint(file);
  ASSERT_TRUE(done.provenance.test_accuracy);
  const std::vector<std::string> lines = metrics_with(c, "{\"step\":");
  // The state that the death leaves: a checkpoint without its accuracy, and no line of the evaluation.
  const std::optional<double> accuracy = std::exchange(done.provenance.test_accuracy, std::nullopt);
  on_rank_zero([&] {
    run::write_checkpoint(file, done);
    std::ofstream cut(c.run_dir + "/metrics.jsonl", std::ios::trunc);
    for (std::size_t i = 0; i + 1 < lines.size(); ++i) cut << lines[i] << '\n';
  });
  run(c);
  const run::Checkpoint again = run::read_checkpoint(file);
  EXPECT_EQ(again.provenance.test_accuracy, accuracy);
  EXPECT_EQ(run::content_hash(again), run::content_hash(done));
  EXPECT_EQ(metrics_with(c, "{\"step\":"), lines);
}

TEST_F(RunCheckpointsTest, CarryTheAccuracyOfTheirOwnStepOnly) {
  config::TrainConfig c = config();
  c.steps = 8;
  c.checkpoint_every = 2;
  c.eval_every = 4.0 / 8.0;  // every 4 steps of the 8 of an epoch
  run(c);
  for (const std::uint64_t step : {2, 4, 6, 8}) {
    EXPECT_EQ(saved(c, step).provenance.test_accuracy.has_value(), step % 4 == 0) << step;
  }
  EXPECT_EQ(metrics_with(c, "test_accuracy").size(), 2u);
}

TEST_F(RunCheckpointsTest, KeepOneEveryNowAndThen) {
  config::TrainConfig c = config();
  c.steps = 7;
  c.checkpoint_every = 1;
  c.keep = 2;
  c.keep_every = 3;
  run(c);
  EXPECT_EQ(run::list_checkpoints(Directory(c.run_dir)), (std::vector<std::uint64_t>{3, 6, 7}));
  EXPECT_EQ(fs::read_symlink(c.run_dir + "/checkpoints/latest"), "step_000000007.h5");
}

TEST_F(RunCheckpointsTest, CarryNoPaths) {
  config::TrainConfig c = config();
  c.text = concat("data=\"", c.data, "\"\nrun-dir=\"", c.run_dir, "\"\nsteps=4\n");
  run(c);
  const std::string file = run::checkpoint_path(c.run_dir, 4);
  EXPECT_EQ(run::read_checkpoint(file).provenance.configuration, "steps=4\n");
  EXPECT_EQ(read_file(file).find(path("")), std::string::npos);
}

TEST(WithoutPaths, LeavesOutWhatNamesUsersAndPlaces) {
  EXPECT_EQ(
      run::without_paths("data=\"/home/somebody/data.h5\"\nrun-dir=\"/home/somebody/run\"\nresume=\"auto\"\n"
                         "steps=4\naugment=\"none\"\n"),
      "resume=\"auto\"\nsteps=4\naugment=\"none\"\n");
  EXPECT_EQ(run::without_paths("data = \"x\"\nresume=\"/home/somebody/step_000000004.h5\"\nlr=0.1\n"),
            "lr=0.1\n");
  EXPECT_EQ(run::without_paths("init-from=\"none\"\nsteps=4\n"), "init-from=\"none\"\nsteps=4\n");
  for (const char* path :
       {"init-from=\"/home/somebody/none\"", "resume = '/home/somebody/auto'", "init-from=best"})
    EXPECT_EQ(run::without_paths(concat(path, "\nsteps=4\n")), "steps=4\n") << path;
  EXPECT_EQ(run::without_paths("# only words\n"), "# only words\n");
  EXPECT_EQ(run::without_paths(""), "");
}

/// So that a smaller --keep frees space on a full disk.
TEST_F(RunCheckpointsTest, KeepNoMoreThanIsAskedForFromTheStartOn) {
  config::TrainConfig c = config();
  c.checkpoint_every = 1;
  run(c);
  ASSERT_EQ(run::list_checkpoints(Directory(c.run_dir)).size(), 4u);
  c.keep = 2;
  run(c);  // is finished: nothing is written
  EXPECT_EQ(run::list_checkpoints(Directory(c.run_dir)), (std::vector<std::uint64_t>{3, 4}));
}

TEST_F(RunCheckpointsTest, LeaveARunThatIsFurtherThanAskedForAsItIs) {
  config::TrainConfig c = config();
  run(c);
  const std::string file = run::checkpoint_path(c.run_dir, 4);
  const auto written = std::filesystem::last_write_time(file);
  c.steps = 3;
  run(c);
  EXPECT_EQ(run::list_checkpoints(Directory(c.run_dir)).size(), 1u);
  EXPECT_EQ(std::filesystem::last_write_time(file), written);
}

}  // namespace
}  // namespace cifar_mpi::train
