#include <csignal>
#include <string>

#include "cuda/runs/gpu_runs.hpp"

/// Errors of the programs on GPUs, and the ends of runs that cannot continue.
namespace cifar_mpi::test {
namespace {

class GpuRunEnd : public GpuRuns {
 protected:
  /// One sentence of the kind `device` with which all ranks exit within seconds.
  static void expect_no_device(int ranks, const std::string& command, const std::string& part) {
    const double began = seconds_now();
    expect_refusal(mpirun(ranks, command), 6, part);
    EXPECT_LT(seconds_now() - began, kPatience);
  }
  static std::string unshared(const std::string& run, const std::string& options = "") {
    return kTrain + usual(run) + " --input-size 8 --device cuda --self-check off " + options;
  }
};

TEST_F(GpuRunEnd, RefusesMoreRanksThanGpus) {
  expect_no_device(2, unshared("two_on_one"), "ranks 0 and 1 on ");
  EXPECT_TRUE(contains(exit_record("two_on_one"), "--share-gpus"));
  expect_no_device(3, "env STAND_IN_GPUS=2 " + unshared("three_on_two"), "3 ranks on this host, but 2 GPUs");
  EXPECT_TRUE(contains(exit_record("three_on_two"), "--share-gpus"));
}

TEST_F(GpuRunEnd, GivesEachRankAGpuOfItsOwn) {
  const Outcome by_order = mpirun(2, "env STAND_IN_GPUS=5 " + unshared("by_order"));
  EXPECT_EQ(by_order.code, 0) << by_order.output;
  const std::string idle = "warning: the run leaves 3 of 5 GPUs of ";
  EXPECT_EQ(count_lines_with(by_order.output, idle), 1) << by_order.output;
  EXPECT_TRUE(std::regex_search(
      by_order.output,
      std::regex(R"(GPUs of \S+: rank 0 GPU 0 0000:10:00\.0, rank 1 GPU 1 0000:11:00\.0\n)")))
      << by_order.output;
  // A launcher that assigns each rank its own GPU.
  write_file(file("own.sh"),
             "STAND_IN_GPUS=2 CUDA_VISIBLE_DEVICES=$((1 - OMPI_COMM_WORLD_LOCAL_RANK)) exec \"$@\"\n");
  const Outcome shown = mpirun(2, "bash " + file("own.sh") + " " + unshared("shown"));
  EXPECT_EQ(shown.code, 0) << shown.output;
  EXPECT_EQ(count_lines_with(shown.output, " idle; start one rank per GPU"), 0) << shown.output;
  EXPECT_TRUE(contains(shown.output, ": rank 0 GPU 0 0000:11:00.0, rank 1 GPU 0 0000:10:00.0\n"));
}

TEST_F(GpuRunEnd, RefusesToStartWithoutAGpu) {
  const std::string sentence = "no GPU is visible (CUDA_VISIBLE_DEVICES is '')";
  expect_no_device(2, "env CUDA_VISIBLE_DEVICES= " + unshared("hidden"), sentence);
  expect_no_device(2, where_rank(1, "CUDA_VISIBLE_DEVICES=", unshared("hidden", "--share-gpus")),
                   sentence + "; use --device cpu (on rank 1");
  EXPECT_FALSE(std::filesystem::exists(file("hidden")));
  // In a job the record is made, because the launcher may change the code.
  expect_no_device(1, "env SLURM_JOB_ID=1 CUDA_VISIBLE_DEVICES= " + unshared("of_a_job"), sentence);
  EXPECT_TRUE(contains(exit_record("of_a_job"), sentence));
}

TEST_F(GpuRunEnd, ChoosesNoDeviceForServersAlone) {
  const Outcome refused = run_command(kTrain + usual("served") + " --update server");
  expect_refusal(refused, 2, "--servers 1 of 1 rank leaves no rank to compute");
  EXPECT_EQ(count_lines_with(refused.output, "device: "), 0) << refused.output;
  EXPECT_FALSE(std::filesystem::exists(file("served")));
}

TEST_F(GpuRunEnd, SaysInOneSentenceThatMemoryIsShort) {
  expect_no_device(2, "env STAND_IN_MIB=1 " + train("tiny", "--steps 1"), " MiB asked for, ");
  // On one rank: first its 73.2 MiB of samples do not fit; then they do, but later data does not.
  ASSERT_EQ(run_command(kPack + " --synthetic 25000 --out " + file("large.h5")).code, 0);
  for (const std::string mib : {"72", "75"}) {
    const std::string run = train("short_" + mib, "--steps 1 --shuffle global --data " + file("large.h5"));
    expect_no_device(2, where_rank(1, "STAND_IN_MIB=" + mib, run), " of " + mib + ".0 MiB left");
    EXPECT_TRUE(contains(exit_record("short_" + mib), "(on rank 1"));
  }
  EXPECT_TRUE(contains(exit_record("short_72"), "73.2 MiB asked for"));
}

TEST_F(GpuRunEnd, DivergesAtTheStepOfTheProcessor) {
  if (!has_cpu()) GTEST_SKIP() << "LOUD: no CPU backend to compare with";
  const auto diverge = [](const std::string& device) {
    const Outcome outcome =
        mpirun(2, train("wild_" + device,
                        "--precision fp32 --lr 1e8 --steps 50 --checkpoint-every 1 --device " + device));
    expect_refusal(outcome, 8, "diverged: ");
    return exit_record("wild_" + device);
  };
  const std::string sentence = diverge("cuda");
  EXPECT_TRUE(sentence.starts_with("8 diverged: ")) << sentence;
  EXPECT_EQ(sentence, diverge("cpu"));
  EXPECT_EQ(last_step("wild_cuda"), last_step("wild_cpu"));
}

TEST_F(GpuRunEnd, NamesARankThatIsStopped) {
  Process job = launch(2, train("frozen", "--steps 1000000 --timeout 3"), "frozen.log");
  ASSERT_TRUE(wait_until(60.0, [] { return has_logged("frozen", 3); })) << job.output();
  const auto ranks = ranks_of(job.pid());
  ASSERT_EQ(ranks.size(), 2u);
  kill(ranks.at(1), SIGSTOP);
  EXPECT_EQ(job.wait(3.0 + kPatience), 7) << job.output();
  EXPECT_TRUE(
      contains(job.output(), "(pid " + std::to_string(ranks.at(1)) + ") has shown no sign of life for"));
  EXPECT_TRUE(wait_until(kPatience, [&] { return !runs(ranks.at(1)); }));
}

/// In the sum with which NCCL opens its connections, and in a later one.
TEST_F(GpuRunEnd, NamesTheNetworkThatNcclLost) {
  for (const char* const pieces : {"0", "60"}) {
    const std::string run = std::string("cut") + pieces;
    Process job =
        launch(2, "env STAND_IN_LINK_BREAKS=" + std::string(pieces) + " " + train(run, "--steps 1000000"),
               run + ".log");
    EXPECT_EQ(job.wait(60.0), 7) << job.output();
    EXPECT_TRUE(contains(job.output(), "NCCL lost a rank or the network: "));
    EXPECT_TRUE(contains(job.output(), ", seen by rank "));
    EXPECT_TRUE(exit_record(run).starts_with("7 ")) << exit_record(run);
    EXPECT_TRUE(contains(exit_record(run), "NCCL lost"));
  }
}

TEST_F(GpuRunEnd, OfABenchmarkHasItsTable) {
  const Outcome step =
      mpirun(1, kBench + " step --device cuda --batch-size 4 --rounds 1 --seconds 0.01 --precision bf16");
  EXPECT_EQ(step.code, 0) << step.output;
  for (const char* line : {"us per step ", "images/s ", "copy, TB/s ",
                           "share of the roofline: ", "  conv1 forward ", "  advance ", "  conv2: cuDNN"})
    EXPECT_EQ(count_lines_with(step.output, line), 1) << step.output;

  const Outcome sums =
      mpirun(2, kBench + " allreduce --device cuda --share-gpus --sizes 4,1M --seconds 0.05");
  EXPECT_EQ(sums.code, 0) << sums.output;  // 1 when a sum is wrong
  EXPECT_EQ(count_lines_with(sums.output, "plain copy:"), 2) << sums.output;
  EXPECT_EQ(count_lines_with(sums.output, " doubling through nccl"), 2) << sums.output;
}

}  // namespace
}  // namespace cifar_mpi::test
