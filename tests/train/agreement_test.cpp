#include <filesystem>
#include <string>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/evaluation/evaluate_checkpoint.hpp"
#include "cifar_mpi/run/run_directory.hpp"
#include "support/errors.hpp"
#include "train/run_fixture.hpp"

/// Settings that the ranks must share to train or evaluate together.
namespace cifar_mpi::train {
namespace {

using Agreement = RunTest;

TEST_F(Agreement, RefusesRanksThatReadOtherFiles) {
  if (world().size() == 1) GTEST_SKIP() << "needs two ranks to differ";
  const int odd = world().size() - 1;
  const auto expect_refused = [&](const std::string& item, const auto& change) {
    const std::string other = other_data(change);
    config::TrainConfig c = config();
    if (world().rank() == odd) c.data = other;
    c.text = "";
    expect_agreed(ErrorKind::data, item, [&] { start(c); });
    expect_agreed(ErrorKind::data, concat("there ", other, " is no copy of rank 0's dataset"),
                  [&] { start(c); });
  };
  expect_refused("the hash of the training labels is ",
                 [](auto&, data::Samples& train, auto&) { std::swap(train.labels[0], train.labels[1]); });
  expect_refused("the hash of some training images is ",
                 [](auto&, data::Samples& train, auto&) { std::ranges::reverse(train.images); });
  expect_refused("the name of class 3 is ",
                 [](data::DatasetInfo& info, auto&, auto&) { info.label_names[3].push_back('x'); });
  expect_refused("the number of test images is ", [](auto&, auto&, data::Samples& test) {
    test.labels.pop_back();
    test.images.resize(test.labels.size() * 3072);
  });
}

TEST_F(Agreement, RefusesRanksThatPlanOtherKernels) {
  if (world().size() == 1) GTEST_SKIP() << "needs two ranks to differ";
  config::TrainConfig c = config();
  c.threads = 0;
  c.precision = engine::Precision::automatic;
  // A backend that resolves the precision differently on the last rank.
  const int odd = world().size() - 1;
  const auto uneven = [&](const engine::BackendOptions& options) {
    engine::BackendOptions mine = options;
    if (world().rank() == odd) mine.threads = options.threads + 1;
    return platform(mine);
  };
  expect_agreed(ErrorKind::device, "of the kernel plan is ",
                [&] { set_up(c, opened(c), world(), Log(1), uneven, stop_); });
}

TEST_F(Agreement, RefusesToEvaluateOtherFilesOnOtherRanks) {
  run(config());
  evaluation::EvaluationConfig evaluation;
  evaluation.data = path("data.h5");
  evaluation.threads = 1;
  const std::string checkpoint = run::checkpoint_path(path("run"), 4);
  const auto evaluate = [&](const std::string& file) {
    return evaluation::evaluate_checkpoint(evaluation, file, world(), platform, heart_);
  };
  const evaluation::Evaluation whole = evaluate(checkpoint);
  EXPECT_EQ(whole.accuracy.count(), kTestSamples);
  EXPECT_EQ(heart_.activity, comm::Activity::evaluating);
  EXPECT_GT(heart_.progress.snapshot().count, 0u);
  EXPECT_TRUE(whole.doubts.empty());
  if (world().size() == 1) return;

  config::TrainConfig other = config();
  other.run_dir = path("other_run");
  other.lr = 0.2;
  run(other);
  const bool odd = world().rank() == world().size() - 1;
  expect_agreed(ErrorKind::usage, "the hash of the checkpoint is ",
                [&] { evaluate(odd ? run::checkpoint_path(other.run_dir, 4) : checkpoint); });
  const std::string changed =
      other_data([](auto&, auto&, data::Samples& test) { std::ranges::reverse(test.images); });
  if (odd) evaluation.data = changed;
  expect_agreed(ErrorKind::data, "the hash of some test images is ", [&] { evaluate(checkpoint); });
}

TEST_F(Agreement, DoubtsADatasetThatIsNotTheCheckpoints) {
  run(config());
  evaluation::EvaluationConfig evaluation;
  evaluation.threads = 1;
  evaluation.data = other_data([](data::DatasetInfo& info, data::Samples& train, auto&) {
    info.label_names[0].push_back('x');
    train.labels.pop_back();
    train.images.resize(train.labels.size() * 3072);
  });
  const auto evaluate = [&] {
    return evaluation::evaluate_checkpoint(evaluation, run::checkpoint_path(path("run"), 4), world(),
                                           platform, heart_);
  };
  expect_agreed(ErrorKind::checkpoint, "or give --other-classes", [&] { evaluate(); });
  evaluation.other_classes = true;
  const evaluation::Evaluation result = evaluate();
  EXPECT_FALSE(result.same_classes);
  ASSERT_EQ(result.doubts.size(), 2u);
  EXPECT_TRUE(contains(result.doubts[0], "its dataset label names are airplane,"));
  EXPECT_TRUE(contains(result.doubts[1], "its dataset training samples are 96, those of this file 95"));
}

TEST_F(Agreement, EvaluatesTheNewestValidCheckpointOfARun) {
  config::TrainConfig c = config();
  c.checkpoint_every = 2;
  run(c);
  on_rank_zero([&] { std::filesystem::resize_file(run::checkpoint_path(c.run_dir, 4), 100); });
  EXPECT_EQ(evaluation::newest_checkpoint(Directory(c.run_dir), Log(1)), 2u);
  expect_error(ErrorKind::checkpoint, {"holds no checkpoint"},
               [&] { evaluation::newest_checkpoint(Directory(path(""))); });
}

}  // namespace
}  // namespace cifar_mpi::train
