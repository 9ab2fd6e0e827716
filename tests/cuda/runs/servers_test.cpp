#include <csignal>
#include <string>

#include "cuda/runs/gpu_runs.hpp"

/// Runs of workers with GPUs and servers without.
namespace cifar_mpi::test {
namespace {

class ServedGpuRuns : public GpuRuns {
 protected:
  void SetUp() override {
    if (!has_cpu()) GTEST_SKIP() << "LOUD: no CPU backend for the server";
  }
  static std::string served(const std::string& run, const std::string& options) {
    return train(run, "--update server " + options);
  }
  /// `command` on three ranks; the last has no GPU, each other one its own.
  static std::string with_two_gpus(const std::string& command) {
    write_file(file("gpus.sh"),
               "[ \"$OMPI_COMM_WORLD_RANK\" != 2 ] || export CUDA_VISIBLE_DEVICES=\n"
               "STAND_IN_GPUS=2 exec \"$@\"\n");
    return "bash " + file("gpus.sh") + " " + command;
  }
};

TEST_F(ServedGpuRuns, HaveServersWithoutAGpuAndCheckThoseOfTheWorkers) {
  const Outcome outcome =
      mpirun(3, with_two_gpus(kTrain + usual("checked") + " --input-size 8 --update server"));
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_EQ(count_lines_with(outcome.output, "device: cuda, because a GPU can be used"), 1) << outcome.output;
  EXPECT_EQ(count_lines_with(outcome.output, "self-check: passed"), 1) << outcome.output;
  EXPECT_EQ(count_lines_with(outcome.output, "update by server, rank 2"), 1) << outcome.output;
  EXPECT_TRUE(std::regex_search(
      outcome.output, std::regex(R"(GPUs of \S+: rank 0 GPU 0 0000:10:00\.0, rank 1 GPU 1 0000:11:00\.0\n)")))
      << outcome.output;
  EXPECT_TRUE(contains(text_of(file("checked") + "/self_check"), "servers add"));
}

TEST_F(ServedGpuRuns, RefuseTwoWorkersWithOneGpu) {
  const std::string command =
      kTrain + usual("one_gpu") + " --input-size 8 --update server --device cuda --self-check off";
  expect_refusal(mpirun(3, command), 6, "ranks 0 and 1 on ");
}

TEST_F(ServedGpuRuns, GoOnToTheSameBitsAfterAWorkerThatWasKilled) {
  Process job = launch(3, served("lost", "--steps 1000000 --checkpoint-every 3"), "lost.log");
  ASSERT_TRUE(wait_until(60.0, [] { return has_logged("lost", 4); })) << job.output();
  const auto ranks = ranks_of(job.pid());
  ASSERT_EQ(ranks.size(), 3u);
  kill(ranks.at(1), SIGKILL);
  EXPECT_TRUE(wait_until(kPatience, [&] { return !runs(ranks.at(0)) && !runs(ranks.at(2)); }))
      << job.output();
  EXPECT_GT(job.wait(kPatience), 0) << job.output();
  EXPECT_TRUE(contains(job.output(), "(pid " + std::to_string(ranks.at(1)) + ") has ended in step "));
  EXPECT_TRUE(exit_record("lost").starts_with("7 rank 1 on ")) << exit_record("lost");
  const int stopped = last_step("lost"), end = stopped + 2;
  EXPECT_EQ(stopped % 3, 0);
  for (const std::string run : {"lost", "undisturbed"}) {
    const Outcome outcome = mpirun(3, served(run, "--steps " + std::to_string(end)));
    ASSERT_EQ(outcome.code, 0) << outcome.output;
  }
  expect_same_groups("lost", "undisturbed", end);
}

/// The message names the host task in which a worker waits.
TEST_F(ServedGpuRuns, NameTheServerThatIsStopped) {
  Process job = launch(3, served("frozen_server", "--steps 1000000 --timeout 3"), "frozen_server.log");
  ASSERT_TRUE(wait_until(60.0, [] { return has_logged("frozen_server", 3); })) << job.output();
  const auto ranks = ranks_of(job.pid());
  ASSERT_EQ(ranks.size(), 3u);
  kill(ranks.at(2), SIGSTOP);
  EXPECT_EQ(job.wait(3.0 + kPatience), 7) << job.output();
  EXPECT_TRUE(
      contains(job.output(), "(pid " + std::to_string(ranks.at(2)) + ") has shown no sign of life for"));
  EXPECT_TRUE(std::regex_search(job.output(), std::regex("rank [01] waits for it in step [0-9]+, pu")))
      << job.output();
  EXPECT_TRUE(wait_until(kPatience, [&] { return !runs(ranks.at(2)); }));
}

TEST_F(ServedGpuRuns, HaveTheCopiesInTheirTimeline) {
  const Outcome outcome = mpirun(3, served("timed", "--steps 30 --log-every 10"));
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const Outcome dump = run_command("h5dump " + file("timed") + "/timeline.h5");
  ASSERT_EQ(dump.code, 0) << dump.output;
  for (const std::string task : {"copy for server 0", "push to server 0", "pull", "copy the answer"})
    EXPECT_TRUE(contains(dump.output, "\"" + task)) << task;
}

}  // namespace
}  // namespace cifar_mpi::test
