#include <csignal>
#include <map>
#include <string>

#include "cuda/runs/gpu_runs.hpp"

/// Runs on GPUs that pass or fail the self-check.
namespace cifar_mpi::test {
namespace {

class SelfCheckedRun : public GpuRuns {
 protected:
  void SetUp() override {
    if (!has_cpu()) GTEST_SKIP() << "LOUD: no CPU backend to compare with";
  }
  static std::string checked(const std::string& run, const std::string& device,
                             const std::string& options = "") {
    return train(run, "--global-batch 4 --precision fp32 --steps 2 --self-check on --device " + device + " " +
                          options);
  }
  static std::string record(const std::string& run) { return text_of(file(run) + "/self_check"); }
  static std::string faulty(const std::string& fault, const std::string& command) {
    return "env STAND_IN_FAULT=" + fault + " " + command;
  }
};

TEST_F(SelfCheckedRun, TakesAGpuThatPassesAndRemembersIt) {
  const Outcome first = run_command(checked("good", "auto", "--precision auto"));
  ASSERT_EQ(first.code, 0) << first.output;
  EXPECT_EQ(count_lines_with(first.output, "device: cuda, because a GPU can be used"), 1) << first.output;
  EXPECT_EQ(count_lines_with(first.output, "self-check: passed in "), 1) << first.output;
  EXPECT_TRUE(record("good").starts_with("passed ")) << record("good");
  EXPECT_TRUE(run::read_checkpoint(checkpoint("good", 2)).provenance.self_check.starts_with("passed 2"));

  const Outcome second = run_command(checked("good", "auto", "--precision auto --steps 3"));
  ASSERT_EQ(second.code, 0) << second.output;
  EXPECT_EQ(count_lines_with(second.output, "self-check: passed at "), 1) << second.output;

  const Outcome without = run_command(checked("without", "cuda", "--precision auto --self-check off"));
  ASSERT_EQ(without.code, 0) << without.output;
  EXPECT_EQ(run::content_hash(run::read_checkpoint(checkpoint("good", 2))),
            run::content_hash(run::read_checkpoint(checkpoint("without", 2))));
}

TEST_F(SelfCheckedRun, StopsOrTakesTheCpuWhereAGpuFails) {
  const std::string why = "its self-check failed on rank 0 on ";
  expect_refusal(run_command(faulty("product", checked("bad_cuda", "cuda"))), 6,
                 "the GPU is not taken: " + why);
  EXPECT_TRUE(exit_record("bad_cuda").starts_with("6 ")) << exit_record("bad_cuda");
  expect_refusal(run_command(faulty("product", "env SLURM_JOB_ID=1 " + checked("bad_job", "auto"))), 6,
                 "the GPU is not taken: " + why);

  const Outcome alone = run_command(faulty("product", checked("bad_auto", "auto")));
  ASSERT_EQ(alone.code, 0) << alone.output;
  EXPECT_EQ(count_lines_with(alone.output, "warning: device: cpu, because " + why), 1) << alone.output;
  EXPECT_TRUE(record("bad_auto").starts_with("failed ")) << record("bad_auto");
  EXPECT_TRUE(
      run::read_checkpoint(checkpoint("bad_auto", 2)).provenance.self_check.starts_with("on the CPU"));
}

TEST_F(SelfCheckedRun, DoesWithoutGraphsWhereTheyAreWrong) {
  const Outcome run = run_command(faulty("stale", checked("no_graphs", "cuda")));
  ASSERT_EQ(run.code, 0) << run.output;
  EXPECT_EQ(
      count_lines_with(run.output, "warning: self-check: this run does without graphs, because rank 0 on "),
      1)
      << run.output;
  EXPECT_TRUE(record("no_graphs").starts_with("on-lanes ")) << record("no_graphs");
  expect_refusal(run_command(faulty("stale", checked("asked", "cuda", "--runner graph"))), 6,
                 "the GPU is not taken: its self-check failed on rank 0 on ");
}

/// The watchdog ends each hang and records it: first of NCCL, then of a kernel. After two, later starts refuse this
/// GPU for these kernels.
TEST_F(SelfCheckedRun, ChecksOnceMoreAfterAHangAndNotAfterTwo) {
  const auto hang = [](const std::string& fault, const std::string& check, const std::string& result) {
    const Outcome hung = mpirun(2, faulty(fault, checked("hung", "auto", "--timeout 2")));
    EXPECT_EQ(hung.code, 6) << hung.output;
    EXPECT_TRUE(contains(hung.output, " in check " + check + " of the self-check of its device"));
    EXPECT_EQ(count_lines_with(hung.output, " hung; checking again"), result == "hung-twice" ? 1 : 0)
        << hung.output;
    EXPECT_TRUE(exit_record("hung").starts_with("6 ")) << exit_record("hung");
    EXPECT_TRUE(record("hung").starts_with(result + ' ')) << record("hung");
  };
  hang("init", "8 (all-reduce)", "hung");
  hang("hang", "1 (device and kernels)", "hung-twice");
  const std::string why = "its self-check hung twice, the last time at ";
  expect_refusal(mpirun(2, "env SLURM_JOB_ID=1 " + checked("hung", "auto")), 6,
                 "the GPU is not taken: " + why);
  EXPECT_TRUE(record("hung").starts_with("hung-twice ")) << record("hung");

  const Outcome on_cpu = mpirun(2, checked("hung", "auto", "--steps 1"));
  ASSERT_EQ(on_cpu.code, 0) << on_cpu.output;
  EXPECT_EQ(count_lines_with(on_cpu.output, "device: cpu, because " + why), 1) << on_cpu.output;

  const Outcome other = mpirun(2, checked("hung", "auto", "--runner lanes"));
  ASSERT_EQ(other.code, 0) << other.output;
  EXPECT_EQ(count_lines_with(other.output, "self-check: passed in "), 1) << other.output;
}

/// An error that stops the check is no verdict on the GPU; the next start checks again.
TEST_F(SelfCheckedRun, ChecksAgainAfterWhatIsNoVerdict) {
  const std::string two = checked("again", "cuda");
  expect_refusal(mpirun(2, where_rank(1, "STAND_IN_MIB=1", two)), 6, " MiB asked for, ");
  EXPECT_TRUE(record("again").starts_with("running ")) << record("again");

  expect_refusal(mpirun(2, where_rank(1, "STAND_IN_FAULT=busy", two)), 6,
                 "device and kernels: the GPU is busy (CUDA: ");
  EXPECT_TRUE(record("again").starts_with("running ")) << record("again");

  Process job = launch(2, where_rank(1, "STAND_IN_FAULT=hang", checked("again", "cuda")), "killed.log");
  std::map<int, int> ranks;
  ASSERT_TRUE(wait_until(60.0, [&] {
    ranks = ranks_of(job.pid());
    return ranks.size() == 2 && job.output().find("; checking again") != std::string::npos;
  })) << job.output();
  kill(ranks.at(1), SIGKILL);
  EXPECT_NE(job.wait(60.0), 0) << job.output();
  EXPECT_TRUE(record("again").starts_with("running ")) << record("again");

  expect_refusal(mpirun(2, "env STAND_IN_LINK_BREAKS=2 " + two), 7,
                 "this is the network between the ranks, not the GPU");
  EXPECT_TRUE(record("again").starts_with("running ")) << record("again");

  const Outcome good = mpirun(2, two);
  EXPECT_EQ(good.code, 0) << good.output;
  EXPECT_TRUE(record("again").starts_with("passed ")) << record("again");
}

/// If one rank can make no graph, or none with sums, all ranks use lanes, and none waits for that rank.
TEST_F(SelfCheckedRun, TakesLanesOnAllRanksWhereOneIsRefusedGraphs) {
  const auto start = [](const std::string& fault, const std::string& steps) {
    const std::string command = checked("refused", "cuda", "--steps " + steps);
    const Outcome run = mpirun(2, where_rank(1, "STAND_IN_FAULT=" + fault, command));
    EXPECT_EQ(run.code, 0) << run.output;
    EXPECT_EQ(count_lines_with(run.output, " could make no graph; checking again"), steps == "2" ? 0 : 1)
        << run.output;
    return run.output;
  };
  for (const auto& [fault, steps] : {std::pair{"nccl_graph", "2"}, {"capture", "3"}}) {
    const std::string output = start(fault, steps);
    EXPECT_EQ(count_lines_with(output, "this run does without graphs, because rank 1 on "), 1) << output;
    EXPECT_EQ(count_lines_with(output, "no graph can be made: "), 1) << output;
    EXPECT_EQ(count_lines_with(output, "each kernel then costs the host an estimated 3 to 6 us"), 1)
        << output;
    EXPECT_TRUE(record("refused").starts_with("graphs-refused ")) << record("refused");
  }
  const std::string good = start("none", "4");
  EXPECT_EQ(count_lines_with(good, "without graphs"), 0) << good;
  EXPECT_TRUE(record("refused").starts_with("passed ")) << record("refused");

  const Outcome straight = mpirun(2, checked("not_refused", "cuda", "--self-check off --steps 4"));
  ASSERT_EQ(straight.code, 0) << straight.output;
  expect_same_groups("refused", "not_refused", 4);
  const std::string graphs = checked("only_graphs", "cuda", "--runner graph");
  expect_refusal(run_command(faulty("launch", graphs)), 6, "no graph can be made: ");
  EXPECT_TRUE(record("only_graphs").starts_with("running ")) << record("only_graphs");
}

/// Each kernel is the first choice that runs on all ranks, although each rank lacks another one.
TEST_F(SelfCheckedRun, TakesTheFastestKernelsThatAllRanksHave) {
  write_file(
      file("faults.sh"),
      "[ \"$OMPI_COMM_WORLD_RANK\" = 0 ] && export STAND_IN_FAULT=best || export STAND_IN_FAULT=backward\n"
      "STAND_IN_CUDNN_MIB=1 exec \"$@\"\n");
  const std::string options = "--global-batch 4 --precision bf16 --show-kernels --steps 2";
  const Outcome run = mpirun(2, "bash " + file("faults.sh") + " " + train("ladder", options));
  ASSERT_EQ(run.code, 0) << run.output;
  const std::string slower = "warning: slower kernel: conv2 ";
  for (const std::string line :
       {"forward: cuDNN's candidate 2 instead of 1, which it expects to be slower, because cuDNN's algorithm "
        "does not "
        "run (rank 0 on ",
        "data gradient: a product of windows and weights instead of cuDNN, an estimated 4 times slower, "
        "because cuDNN's "
        "algorithm does not run (rank 1 on ",
        "data gradient product: cuBLASLt's candidate 2, which it expects to be slower"})
    EXPECT_EQ(count_lines_with(run.output, slower + line), 1) << run.output;
  const std::string plan = "conv2: cuDNN bf16, algorithms 3 forward, 3 weight gradient\n";
  EXPECT_TRUE(contains(run.output, "  " + plan));
  EXPECT_TRUE(contains(run::read_checkpoint(checkpoint("ladder", 2)).provenance.kernels, plan));

  const Outcome plain = run_command(faulty("blas", train("plain", options)));
  ASSERT_EQ(plain.code, 0) << plain.output;
  EXPECT_EQ(
      count_lines_with(plain.output,
                       "slower kernel: local3 forward product: our plain kernel, about 40 times slower"),
      1)
      << plain.output;
}

TEST_F(SelfCheckedRun, SaysWhyADriverIsNotTaken) {
  const std::string why = "the NVIDIA driver is for CUDA 11.4, this build needs ";
  expect_refusal(run_command(faulty("driver", checked("old_cuda", "cuda"))), 6, why);
  expect_refusal(run_command(faulty("driver", "env SLURM_JOB_ID=1 " + checked("old_job", "auto"))), 6,
                 "this SLURM job has GPUs");
  const Outcome alone = run_command(faulty("driver", checked("old_auto", "auto")));
  ASSERT_EQ(alone.code, 0) << alone.output;
  EXPECT_EQ(count_lines_with(alone.output, "warning: device: cpu, because CUDA cannot be used: " + why), 1)
      << alone.output;
}

TEST_F(SelfCheckedRun, TakesTheCpuWithAWarningWithoutCuBlasLt) {
  const std::string why = "cuBLASLt cannot be loaded: no such library";
  const Outcome automatic = run_command(faulty("no_blas", checked("no_blas", "auto")));
  ASSERT_EQ(automatic.code, 0) << automatic.output;
  EXPECT_EQ(count_lines_with(automatic.output, "warning: device: cpu, because CUDA cannot be used: " + why),
            1)
      << automatic.output;
  expect_refusal(run_command(faulty("no_blas", checked("no_blas", "cuda"))), 6, why);
  const Outcome build = run_command(faulty("no_blas", kTrain + " --check-build"));
  EXPECT_EQ(build.code, 0) << build.output;
  EXPECT_EQ(count_lines_with(build.output, ", cuBLASLt missing, "), 1) << build.output;
}

TEST_F(SelfCheckedRun, TakesTheCpuWhereThereAreMoreRanksThanGpus) {
  const auto unshared = [](const std::string& run) {
    std::string command = checked(run, "auto");
    return command.erase(command.find("--share-gpus "), std::string("--share-gpus ").size());
  };
  const std::string why =
      " have 1 GPU; start one rank per GPU (-np 1 on one host), or let ranks share a GPU for a test with "
      "--share-gpus";
  const Outcome alone = mpirun(2, unshared("crowded"));
  EXPECT_EQ(alone.code, 0) << alone.output;
  EXPECT_EQ(count_lines_with(alone.output, "device: cpu, because CUDA cannot be used: 2 ranks of "), 1)
      << alone.output;
  EXPECT_EQ(count_lines_with(alone.output, why), 1) << alone.output;
  expect_refusal(mpirun(2, "env SLURM_JOB_ID=1 " + unshared("crowded_job")), 6, why);
}

TEST_F(SelfCheckedRun, PrintsATableAloneForAdministrators) {
  const std::string only = kTrain +
                           " --self-check only --share-gpus --threads 1 --batch-size 4 --input-size 8 "
                           "--lookahead 5 --lookahead-steps 500";  // the check has fewer steps
  const Outcome good = mpirun(2, only);
  EXPECT_EQ(good.code, 0) << good.output;
  EXPECT_EQ(count_lines_with(good.output, "  8 all-reduce "), 1) << good.output;
  EXPECT_EQ(count_lines_with(good.output, " ok "), 8) << good.output;
  EXPECT_EQ(count_lines_with(good.output, "passed in "), 1) << good.output;
  const Outcome bad = run_command(faulty("nan", only));
  EXPECT_EQ(bad.code, 6) << bad.output;
  EXPECT_EQ(count_lines_with(bad.output, "  6 divergence                       FAILED "), 1) << bad.output;
  expect_refusal(run_command("env CUDA_VISIBLE_DEVICES= " + only), 6, "no GPU is visible");
}

}  // namespace
}  // namespace cifar_mpi::test
