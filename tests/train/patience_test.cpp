#include "train/patience.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "cifar_mpi/run/run_directory.hpp"
#include "report/metrics_reader.hpp"
#include "train/run_fixture.hpp"

namespace cifar_mpi::train {
namespace {

TEST(Patience, CountsEvaluationsSinceTheFirstOfTheBest) {
  Patience patience(3);
  for (const double accuracy : {0.5, 0.4, 0.5, 0.6, 0.6, 0.1}) {
    patience.note(100, accuracy);
    EXPECT_FALSE(patience.exhausted());
  }
  patience.note(700, 0.6);
  EXPECT_TRUE(patience.exhausted());
  EXPECT_EQ(patience.text(),
            "no evaluation of the last 3 was better than 60.00 % at step 100 (--patience 3)");
  Patience endless(0);
  for (std::uint64_t step = 1; step < 100; ++step) endless.note(step, 0.0);
  EXPECT_FALSE(endless.exhausted());
}

/// Evaluates after every second step of sixty, with a rate that changes no prediction.
class EarlyEnd : public RunTest {
 protected:
  config::TrainConfig impatient() const {
    config::TrainConfig c = config();
    c.steps = 60;
    c.eval_every = 2.0 / 8.0;
    c.lr = 1e-12;
    c.patience = 3;
    return c;
  }
  report::Metrics metrics(const config::TrainConfig& c) {
    return report::read_metrics(c.run_dir + "/metrics.jsonl");
  }
};

TEST_F(EarlyEnd, ComesAfterAsManyEvaluationsWithoutABetterOne) {
  config::TrainConfig c = impatient();
  run(c);
  EXPECT_EQ(metrics(c).evaluations.size(), 4u);
  EXPECT_EQ(metrics(c).events.back().kind, report::RunEventKind::end);
  EXPECT_EQ(metrics(c).events.back().step, 8u);
  EXPECT_NE(metrics(c).events.back().text.find("of the last 3 was better than"), std::string::npos);
  const auto accuracy = run::recorded_test_accuracy(run::checkpoint_path(c.run_dir, 8));
  ASSERT_TRUE(accuracy.has_value());
  EXPECT_NEAR(*accuracy, metrics(c).evaluations.front().test_accuracy, 1e-4);

  run(c);  // is finished
  EXPECT_EQ(metrics(c).events.size(), 2u);
  c.patience = 5;
  run(c);
  EXPECT_EQ(metrics(c).events.back().step, 12u);
  EXPECT_EQ(metrics(c).evaluations.size(), 6u);
}

TEST_F(EarlyEnd, CountsEvaluationsOfEarlierStarts) {
  config::TrainConfig c = impatient();
  c.checkpoint_every = 5;
  c.keep = 9;
  run(c);
  on_rank_zero([&] {  // as if it had been killed after step 7, with the evaluations of steps 2, 4 and 6
    std::filesystem::remove(run::checkpoint_path(c.run_dir, 8));
  });
  run(c);
  EXPECT_EQ(metrics(c).events.back().kind, report::RunEventKind::end);
  EXPECT_EQ(metrics(c).events.back().step, 8u);
  on_rank_zero([&] {
    std::filesystem::remove(run::checkpoint_path(c.run_dir, 8));
    std::filesystem::remove(c.run_dir + "/metrics.jsonl");
  });
  run(c);  // from step 5 on, without what was noted before
  EXPECT_EQ(metrics(c).events.back().step, 12u);
}

TEST_F(EarlyEnd, CountsNoEvaluationsWithOtherViews) {
  config::TrainConfig c = impatient();
  run(c);
  c.views = 2;
  run(c);  // from step 8 on
  EXPECT_EQ(metrics(c).events.back().step, 16u);
  EXPECT_EQ(metrics(c).evaluations.front().views, 1);
  EXPECT_EQ(metrics(c).evaluations.back().views, 2);
}

/// The other ranks would wait for rank 0.
TEST_F(EarlyEnd, ComesAlsoWhereTheFileCannotBeRead) {
  Patience patience(1);
  on_rank_zero([&] {
    std::filesystem::create_directories(path("run"));
    std::ofstream(path("run/metrics.jsonl")) << "{\"format\":\"cifar_mpi metrics\",\"version\":9}\n";
  });
  patience.resume(world(), opened(config()), 7, Log(world().rank() + 1));
  patience.note(8, 0.5);
  EXPECT_FALSE(patience.exhausted());
  patience.note(9, 0.5);
  EXPECT_TRUE(patience.exhausted());
}

TEST_F(EarlyEnd, DoesNotComeWhileThereIsPatience) {
  config::TrainConfig c = impatient();
  c.patience = 8;
  c.steps = 16;
  run(c);
  EXPECT_EQ(metrics(c).evaluations.size(), 8u) << "the last seven are no better";
  EXPECT_EQ(metrics(c).events.back().step, 16u);
  EXPECT_EQ(metrics(c).events.back().text, "");
}

}  // namespace
}  // namespace cifar_mpi::train
