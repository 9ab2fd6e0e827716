#include <cmath>
#include <csignal>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cuda/runs/gpu_runs.hpp"

/// Runs on GPUs that reach the same bits, whatever disturbs them.
namespace cifar_mpi::test {
namespace {

class SameBits : public GpuRuns {
 protected:
  static void go_on_to(int step, const std::string& run, const std::string& options = "", int ranks = 2) {
    const Outcome outcome = mpirun(ranks, train(run, "--steps " + std::to_string(step) + " " + options));
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    ASSERT_EQ(last_step(run), step) << outcome.output;
  }
  /// Two more steps, and the result equals that of an undisturbed run.
  static void expect_same_end(const std::string& run) {
    const int stopped = last_step(run), end = stopped + 2;
    const Outcome resumed = mpirun(2, train(run, "--steps " + std::to_string(end)));
    ASSERT_EQ(resumed.code, 0) << resumed.output;
    if (stopped > 0) {
      EXPECT_EQ(count_lines_with(resumed.output, "resuming at step " + std::to_string(stopped) + " of"), 1)
          << resumed.output;
    }
    EXPECT_EQ(count_lines_with(resumed.output, "different bits"), 0) << resumed.output;
    go_on_to(end, "undisturbed_" + run);
    expect_same_groups(run, "undisturbed_" + run, end);
  }
};

TEST_F(SameBits, ComeInWhateverOrderTheGpuWorks) {
  const std::string large =
      "--input-size 24 ";  // five buckets, each on its way while the next one is computed
  go_on_to(3, "first", large);
  for (const std::string seed : {"2", "3", "4"}) {
    const Outcome outcome =
        mpirun(2, "env STAND_IN_SEED=" + seed + " " + train("seed_" + seed, large + "--steps 3"));
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    expect_same_groups("seed_" + seed, "first", 3);
  }
  // The comparison can fail.
  go_on_to(3, "other", large + "--bucket-mib 1 --seed 2");
  EXPECT_EQ(
      run_command("h5diff " + checkpoint("first", 3) + " " + checkpoint("other", 3) + " /model /model").code,
      1);
}

TEST_F(SameBits, ComeFromEveryRunner) {
  const std::string several = "--bucket-mib 0.25 ";  // as many buckets as large images have
  go_on_to(6, "serial", several + "--runner serial");
  const std::vector<std::pair<std::string, std::string>> others{
      {"lanes", "--runner lanes"},
      {"graph", "--runner graph"},
      {"graphs_of_three", "--runner graph --graph-steps 3 --log-every 6"}};
  for (const auto& [run, options] : others) {
    go_on_to(6, run, several + options);
    expect_same_groups(run, "serial", 6);
  }
}

/// Each size has a graph of its own, and none reaches into the next size.
TEST_F(SameBits, ComeFromGraphsOfImagesOfSeveralSizes) {
  const std::string sizes = "--model resnet20 --schedule staircase --input-size 10 --image-size 8x0.25,10 ";
  go_on_to(4, "sizes_serial", sizes + "--runner serial");
  go_on_to(2, "sizes_graph", sizes);
  go_on_to(4, "sizes_graph", sizes + "--runner graph --graph-steps 2 --log-every 6");
  expect_same_groups("sizes_graph", "sizes_serial", 4);
  go_on_to(4, "sizes_graphs", sizes + "--runner graph --graph-steps 3 --log-every 6");
  expect_same_groups("sizes_graphs", "sizes_serial", 4);
}

/// Sums over the ranks inside the network are part of a graph. Two ranks of 4 images learn as one of 8: the first losses
/// differ by roundings, and the second ones by what these change of the first step.
TEST_F(SameBits, ComeFromSumsInsideTheNetwork) {
  const std::string plain =
      "--model resnet20 --schedule staircase --lr 0.01 --shuffle global --precision fp32 ";
  const std::string synced = plain + "--sync-batch-norm ";
  go_on_to(3, "synced_serial", synced + "--runner serial");
  go_on_to(1, "synced_graph", synced + "--runner audit");
  go_on_to(3, "synced_graph", synced + "--runner graph --graph-steps 2 --log-every 2");
  expect_same_groups("synced_graph", "synced_serial", 3);
  go_on_to(2, "synced_one", synced, 1);
  go_on_to(1, "apart", plain);
  const auto losses = [](const std::string& run) {
    std::vector<double> found;
    std::istringstream lines(text_of(file(run) + "/metrics.jsonl"));
    const std::string key = ",\"cross_entropy\":";
    for (std::string line; std::getline(lines, line);) {
      if (const std::size_t at = line.find(key); at != std::string::npos)
        found.push_back(std::stod(line.substr(at + key.size())));
    }
    return found;
  };
  const std::vector<double> one = losses("synced_one"), two = losses("synced_serial"),
                            apart = losses("apart");
  ASSERT_EQ(one.size(), 2u);
  ASSERT_EQ(two.size(), 3u);
  ASSERT_EQ(apart.size(), 1u);
  EXPECT_NEAR(two[0], one[0], 1e-5 * one[0]);
  EXPECT_NEAR(two[1], one[1], 1e-5 * one[1] + 1e-2 * std::abs(one[1] - one[0]));
  EXPECT_GT(std::abs(apart[0] - one[0]), 1e-2 * one[0]);
}

/// All ranks capture and launch the same graphs, whichever steps are sampled or traced, also after a resume. Otherwise
/// the stand-in's NCCL ends the run.
TEST_F(SameBits, ComeWhateverIsLookedAt) {
  const std::string several = "--bucket-mib 0.25 ";
  go_on_to(7, "unseen", several + "--summary-every 0 --runner lanes");
  const std::string seen = several + "--summary-every 3 --graph-steps 2 --log-every 7 --trace ";
  go_on_to(4, "seen", seen + "4-4");
  go_on_to(7, "seen", seen + "6-6");
  expect_same_groups("seen", "unseen", 7);
  // Each rank computes other matrices.
  go_on_to(4, "shared", seen + "2-3 --optimizer muon --share-matrices on");
  go_on_to(4, "alone", several + "--optimizer muon --share-matrices off");
  expect_same_groups("shared", "alone", 4);
  const Outcome momentum = run_command("h5diff " + checkpoint("alone", 4) + " " + checkpoint("shared", 4) +
                                       " /momentum /momentum");
  EXPECT_EQ(momentum.code, 0) << momentum.output;
}

/// A fault may depend on the rank, so this has as many ranks as a node has GPUs. tools/gpu_check has the other ways to
/// update.
TEST_F(SameBits, NeedTheSameGraphsOnAllOfEightRanks) {
  const std::string seen =
      "env STAND_IN_GPUS=8 " + train("eight", "--summary-every 2 --graph-steps 2 --trace ");
  for (const auto& [traced, end] : {std::pair{"1-1", 1}, {"5-5", 5}}) {
    const std::string steps = std::to_string(end);
    const Outcome outcome = mpirun(8, seen + traced + " --log-every 8 --steps " + steps);
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    ASSERT_EQ(last_step("eight"), end) << outcome.output;
  }
}

TEST_F(SameBits, ComeAfterAStopOnRequest) {
  const Process job = launch(2, train("stopped", "--steps 1000000"), "stopped.log");
  ASSERT_TRUE(wait_until(60.0, [] { return has_logged("stopped", 2); })) << job.output();
  const auto ranks = ranks_of(job.pid());
  ASSERT_EQ(ranks.size(), 2u);
  kill(ranks.at(1), SIGUSR1);
  EXPECT_TRUE(wait_until(kPatience, [&] { return !runs(ranks.at(0)) && !runs(ranks.at(1)); }))
      << job.output();
  EXPECT_TRUE(exit_record("stopped").starts_with("75 stopped on request at step ")) << exit_record("stopped");
  EXPECT_GE(last_step("stopped"), 2);
  expect_same_end("stopped");
}

TEST_F(SameBits, ComeAfterAStopInTime) {
  const Outcome stopped = mpirun(2, train("in_time", "--steps 1000000 --stop-after 0.02"));
  EXPECT_EQ(stopped.code, 75) << stopped.output;
  EXPECT_GE(last_step("in_time"), 1);
  expect_same_end("in_time");
}

TEST_F(SameBits, ComeAfterARankThatWasKilled) {
  Process job = launch(2, train("killed", "--steps 1000000 --checkpoint-every 3"), "killed.log");
  ASSERT_TRUE(wait_until(60.0, [] { return has_logged("killed", 4); })) << job.output();
  const auto ranks = ranks_of(job.pid());
  ASSERT_EQ(ranks.size(), 2u);
  kill(ranks.at(1), SIGKILL);
  // The watchdog sees it within two seconds, and NCCL gives it that time.
  EXPECT_TRUE(wait_until(kPatience, [&] { return !runs(ranks.at(0)); })) << job.output();
  EXPECT_GT(job.wait(kPatience), 0) << job.output();
  EXPECT_TRUE(contains(job.output(), "rank 1 on "));
  EXPECT_TRUE(contains(job.output(), "(pid " + std::to_string(ranks.at(1)) + ") has ended in step "));
  EXPECT_TRUE(exit_record("killed").starts_with("7 rank 1 on ")) << exit_record("killed");
  EXPECT_EQ(last_step("killed") % 3, 0);
  expect_same_end("killed");
}

TEST_F(SameBits, AreNotPromisedWithNvlsInTheLogAndOfTheBuild) {
  const std::string warning =
      " lets NCCL sum in NVLink switches (NVLS), whose sums can differ from run to run";
  const Outcome asked = mpirun(2, train("nvls", "--steps 1 --nccl-nvls"));
  EXPECT_EQ(asked.code, 0) << asked.output;
  EXPECT_EQ(count_lines_with(asked.output, "warning: --nccl-nvls" + warning), 1) << asked.output;
  const Outcome build = run_command(kTrain + " --check-build --nccl-nvls");
  EXPECT_EQ(count_lines_with(build.output, "--nccl-nvls" + warning), 1) << build.output;
  const Outcome of_user = run_command("env NCCL_NVLS_ENABLE=2 " + kTrain + " --check-build");
  EXPECT_EQ(count_lines_with(of_user.output, "NCCL_NVLS_ENABLE=2" + warning), 1) << of_user.output;
  EXPECT_FALSE(contains(run_command(kTrain + " --check-build").output, "NVLS"));
}

TEST_F(SameBits, ComeOnAnyNumberOfRanksWhenAsked) {
  for (const int ranks : {1, 2, 4}) {
    const std::string run = "on_" + std::to_string(ranks);
    const Outcome outcome = mpirun(
        ranks, train(run, "--bucket-mib 0.25 --reproducible --micro-shards 4 --shuffle global --steps 3"));
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    expect_same_groups(run, "on_1", 3, false);
  }
  // The comparison can fail: without the flag the sums are added in another order.
  for (const int ranks : {1, 2}) {
    const Outcome outcome =
        mpirun(ranks, train("plain_" + std::to_string(ranks), "--shuffle global --steps 3"));
    ASSERT_EQ(outcome.code, 0) << outcome.output;
  }
  EXPECT_EQ(
      run_command("h5diff " + checkpoint("plain_1", 3) + " " + checkpoint("plain_2", 3) + " /model /model")
          .code,
      1);
}

}  // namespace
}  // namespace cifar_mpi::test
