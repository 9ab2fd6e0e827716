#include <string>
#include <vector>

#include "app/programs.hpp"

/// Runs that resume under other circumstances, as users start them.
namespace cifar_mpi::test {
namespace {

class ResumedRun : public Programs {
 protected:
  static void SetUpTestSuite() {
    Programs::SetUpTestSuite();
    ASSERT_EQ(run_command(kPack + " --synthetic 96 --out " + file("data.h5")).code, 0);
  }
  static Outcome train(int ranks, const std::string& run, const std::string& options) {
    // With several threads the program restarts itself to set GOMP_SPINCOUNT.
    return mpirun(ranks, "env -u GOMP_SPINCOUNT " + kTrain + " --data " + file("data.h5") + " --run-dir " +
                             file(run) + " --global-batch 12 --threads 1 --log-every 1 --precision fp32 " +
                             options);
  }
};

TEST_F(ResumedRun, GoesOnAtTheSameSamplesOnFourThreeTwoAndFourRanks) {
  const std::string common = "--shuffle global --lr 0.01 ";
  ASSERT_EQ(train(1, "straight", common + "--steps 12").code, 0);
  int steps = 0;
  for (const int ranks : {4, 3, 2, 4}) {
    const std::string leg =
        output_of(train(ranks, "changing", common + "--steps " + std::to_string(steps += 3)));
    if (steps == 3) continue;
    EXPECT_EQ(count_lines_with(leg, "note: the number of ranks that compute is " + std::to_string(ranks)), 1)
        << leg;
    EXPECT_EQ(count_lines_with(leg, "--shuffle shard"), 0) << leg;
  }
  const std::vector<double> wanted = losses("straight"), found = losses("changing");
  ASSERT_EQ(wanted.size(), 12u);
  ASSERT_EQ(found.size(), 12u);
  for (std::size_t i = 0; i < 12; ++i) {
    // The same samples with sums in another order: over 12 small steps, rounding grows to far less than a
    // thousandth. Other samples change the loss of a batch of 12 in its first or second digit.
    EXPECT_NEAR(found[i], wanted[i], 1e-3 * wanted[i]) << "step " << i + 1;
  }
}

TEST_F(ResumedRun, SaysWhatShardsMeanOnAnotherNumberOfRanks) {
  const std::vector<std::pair<int, int>> legs{{4, 3}, {3, 6}, {2, 16}, {4, 18}};
  for (const auto& [ranks, steps] : legs) {
    const std::string leg = output_of(train(ranks, "shards", "--steps " + std::to_string(steps)));
    // An epoch has 8 steps of 12 of 96 samples, so the last change is between two epochs.
    const bool said = steps == 6 || steps == 16;
    EXPECT_EQ(count_lines_with(leg, "each epoch has each sample exactly once"), said) << leg;
    if (said) {
      EXPECT_EQ(count_lines_with(leg, "which all ranks have reached after step 8,"), 1) << leg;
    }
  }
  EXPECT_EQ(losses("shards").size(), 18u);
}

TEST_F(ResumedRun, KeepsItsBitsOnOtherRanksWhenReproducible) {
  ASSERT_EQ(run_command("command -v h5diff").code, 0) << "h5diff of hdf5-tools is not installed";
  // The optimizer's state is resumed too, and the norm of the sum is the same on all ranks.
  const std::string optimizer = "--optimizer adamw --lr 0.001 --clip-norm 0.5 --label-smoothing 0.1 ";
  const std::string common = optimizer + "--shuffle global --reproducible --micro-shards 4 ";
  ASSERT_EQ(train(1, "one_rank", common + "--steps 6").code, 0);
  int steps = 0;
  for (const int ranks : {4, 2, 1}) {
    const std::string leg =
        output_of(train(ranks, "fewer_ranks", common + "--steps " + std::to_string(steps += 2)));
    EXPECT_EQ(count_lines_with(leg, "different bits"), 0) << leg;
  }
  for (const char* group : {"/model", "/ema", "/moment1", "/moment2", "/optimizer"}) {
    const std::string name = "/checkpoints/step_000000006.h5 ";
    const Outcome diff =
        run_command("h5diff " + file("one_rank") + name + file("fewer_ranks") + name + group + " " + group);
    EXPECT_EQ(diff.code, 0) << group << ": " << diff.output;
  }
  expect_refusal(train(1, "fewer_ranks", optimizer + "--shuffle global --steps 8"), 4,
                 "--micro-shards is 4, this one's is not set");
}

TEST_F(ResumedRun, AllowsAChangeForOneStartOnly) {
  ASSERT_EQ(train(1, "changed", "--steps 2 --lr 0.1").code, 0);
  const Outcome refused = train(1, "changed", "--steps 3 --lr 0.05");
  EXPECT_EQ(refused.code, 4) << refused.output;
  const std::string allowed =
      output_of(train(1, "changed", "--steps 3 --lr 0.05 --allow-change lr,momentum"));
  EXPECT_EQ(count_lines_with(allowed, "changed from step 3 on: --lr 0.1 -> 0.05 (--allow-change)"), 1)
      << allowed;
  const std::string config = read_file(file("changed/config.toml"));
  EXPECT_EQ(count_lines_with(config, "allow-change"), 1) << config;
  EXPECT_TRUE(contains(config, "\n# allow-change=\"lr,momentum\"\n"));
  // The file as it is resumes the run; another change needs the option again.
  const std::string again = kTrain + " --config " + file("changed/config.toml") + " --steps 4";
  expect_refusal(run_command(again + " --lr 0.2"), 4, "its --lr is 0.05, this one's is 0.2");
  const std::string resumed = output_of(run_command(again));
  EXPECT_EQ(count_lines_with(resumed, "--allow-change"), 0) << resumed;
  const std::string finished = output_of(run_command(again + " --lr 0.2 --allow-change lr"));
  EXPECT_EQ(count_lines_with(finished,
                             "resuming at step 4 of 4, so no step is left to train (changed, with "
                             "no step to act on: --lr 0.05 -> 0.2)"),
            1)
      << finished;
  EXPECT_EQ(count_lines_with(finished, "changed from step"), 0) << finished;
  // A file that a user prints keeps what was asked for.
  EXPECT_EQ(count_lines_with(run_command(kTrain + " --allow-change lr --print-config").output,
                             "allow-change=\"lr\""),
            1);
}

TEST_F(ResumedRun, SaysWhatIsNotAsItWas) {
  ASSERT_EQ(train(2, "run", "--steps 2 --all-reduce ring").code, 0);
  const std::string adopted = output_of(train(2, "run", "--steps 3"));
  EXPECT_EQ(count_lines_with(adopted, "the checkpoint was made with"), 0) << adopted;
  EXPECT_EQ(count_lines_with(adopted, "all-reduce ring;"), 1) << adopted;
  const std::string other = output_of(train(2, "run", "--steps 4 --all-reduce mpi --threads 2"));
  EXPECT_EQ(
      count_lines_with(other,
                       "note: all-reduce is mpi, but the checkpoint was made with ring: the run continues "
                       "with different bits"),
      1)
      << other;
  EXPECT_EQ(count_lines_with(other, "note: threads is 2, but the checkpoint was made with 1:"), 1) << other;
}

}  // namespace
}  // namespace cifar_mpi::test
