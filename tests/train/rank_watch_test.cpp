#include "watch/rank_watch.hpp"

#include "train/run_fixture.hpp"

namespace cifar_mpi::train {
namespace {

using RankWatchOfARun = RunTest;

TEST_F(RankWatchOfARun, CatchesACorruptedRankAndNamesIt) {
  if (world().size() < 2) GTEST_SKIP() << "needs two ranks to differ";
  config::TrainConfig c = config();
  c.steps = 8;
  c.check_every = 4;
  const auto state = start(c);
  const int last = world().size() - 1;
  if (world().rank() == last) state->blocks.state[optim::StateRole::weights].as<float>()[1000] += 1e-6f;
  expect_agreed(ErrorKind::desync, "rank " + std::to_string(last) + " (", [&] { run(*state); });
}

TEST_F(RankWatchOfARun, FindsTheFirstDifferenceAtALaterCheck) {
  if (world().size() < 2) GTEST_SKIP() << "needs two ranks to differ";
  config::TrainConfig c = config();
  c.steps = 4;
  c.check_every = 2;
  run(c);
  c.steps = 12;
  const auto state = start(c);
  // Wrong averages of a single rank are not compared; wrong parameters are.
  if (world().rank() == 1) state->blocks.state[optim::StateRole::average].as<float>()[0] += 1.0f;
  run(*state);
  c.steps = 20;
  const auto again = start(c);
  if (world().rank() == 1) again->blocks.state[optim::StateRole::weights].as<float>()[0] += 1.0f;
  expect_agreed(ErrorKind::desync, "before step 13", [&] { run(*again); });
}

TEST_F(RankWatchOfARun, WritesTheSpreadOfComputeTimes) {
  config::TrainConfig c = config();
  c.log_every = 2;
  run(c);
  const std::string text = read_file(c.run_dir + "/metrics.jsonl");
  EXPECT_NE(text.find("\"compute_ms\":{\"min\":"), std::string::npos) << text;
  EXPECT_EQ(text.find("\"compute_ms\":{\"min\":0,"), std::string::npos) << text;
}

}  // namespace
}  // namespace cifar_mpi::train
