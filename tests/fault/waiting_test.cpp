#include <gtest/gtest.h>

#include <regex>

#include "fault/disturbed_run.hpp"

/// A waiting rank must not look like a hanging one, on its own node and across nodes.
namespace cifar_mpi::test {
namespace {

/// One emulated node per rank: watchdogs share no memory and only know each other's reports.
const Environment kNodeEach{{"OMPI_MCA_osc_sm_backing_directory", "/nonexistent"}};

class Waiting : public Fault {
 protected:
  static Words quick(const std::string& run, const Words& more) {
    return with(
        with(endless(run), {"--timeout", "2", "--checkpoint-every", "1000000", "--check-every", "1000000"}),
        more);
  }
  static Environment fault(const std::string& what, Environment environment = {}) {
    environment.insert({{"LD_PRELOAD", CIFAR_MPI_FAULT_PRELOAD}, {"FAULT", what}});
    return environment;
  }
  static std::size_t length_of_metrics(const std::string& run) {
    return text_of(file(run) + "/metrics.jsonl").size();
  }
};

/// Each oneDNN call of rank 0 takes 60 ms: a step of four batches and the evaluation exceed the timeout, and
/// so do waits of another rank after four local steps.
TEST_F(Waiting, RanksThatWaitForASlowOneEndNothing) {
  const Words served{"--update", "server", "--accumulate", "4", "--steps", "1"};
  const Words local{"--update", "local", "--local-steps", "4", "--steps", "4"};
  Process a = start(under_mpirun(quick("served", served), 2), fault("slow:0:60"), file("served.log"));
  Process b = start(under_mpirun(quick("local", local), 2), fault("slow:0:60", kNodeEach), file("local.log"));
  EXPECT_EQ(a.wait(90.0), 0) << a.output();
  EXPECT_EQ(b.wait(90.0), 0) << b.output();
  for (const Process* job : {&a, &b}) {
    const std::string output = job->output();
    std::smatch pace;
    ASSERT_TRUE(std::regex_search(output, pace, std::regex("; ([0-9.]+) sec/batch"))) << output;
    EXPECT_GT(std::stod(pace[1]) * (job == &b ? 4 : 1), 2.1) << "not longer than the timeout";
  }
}

/// Two workers and a server that takes what arrives first, on one node and on one node each.
TEST_F(Waiting, AStoppedWorkerHoldsUpNobodyWhereTheFirstPushesMakeAStep) {
  for (const std::string aggregate : {"1", "async"}) {
    const bool node_each = aggregate == "async";
    const Words served{"--update", "server", "--aggregate", aggregate, "--shuffle", "global"};
    Process job = start(under_mpirun(quick(aggregate, served)), node_each ? kNodeEach : Environment(),
                        file(aggregate + ".log"));
    // Rank 0 does not see every step.
    EXPECT_TRUE(wait_until(60.0, [&] { return length_of_metrics(aggregate) > 5000; })) << job.output();
    const auto ranks = ranks_of(job.pid());
    ASSERT_EQ(ranks.size(), 3u);
    kill(ranks.at(1), SIGSTOP);
    const std::string who =
        node_each ? " \\(rank 1\\) has given" : "rank 1 on \\S+ \\(pid [0-9]+\\) has shown";
    const std::regex line(who + " no sign of life for [0-9.]+ s[^;\n]*; the run continues");
    EXPECT_TRUE(wait_until(60.0, [&] { return std::regex_search(job.output(), line); })) << job.output();
    const std::size_t before = length_of_metrics(aggregate);
    EXPECT_TRUE(wait_until(60.0, [&] { return length_of_metrics(aggregate) > before + 500; }))
        << job.output();
    if (!node_each) {  // it continues, and all stop together
      kill(ranks.at(1), SIGCONT);
      job.signal(SIGUSR1);
      EXPECT_EQ(job.wait(2 * kLaunchers), 75) << job.output();
    } else {  // all must meet, and wait for it
      kill(ranks.at(0), SIGUSR1);
      EXPECT_EQ(job.wait(2.0 + kLaunchers), 7) << job.output();
      const std::regex named("^7 \\S+ \\(rank 1\\) has given no sign of life for [0-9.]+ s");
      EXPECT_TRUE(std::regex_search(exit_record(aggregate), named)) << exit_record(aggregate);
    }
    expect_all_ended(ranks);
  }
}

TEST_F(Waiting, ARankThatHangsInATaskIsNamedByItsNodeAndByOneThatWaits) {
  Process job = start(under_mpirun(quick("hung", {}), 2), fault("hang:1:100", kNodeEach), file("hung.log"));
  EXPECT_EQ(job.wait(60.0), 7) << job.output();
  const std::regex named(
      "rank 1 on (\\S+) \\(pid [0-9]+\\) has made no progress for [0-9.]+ s in step [0-9]+, task [^;\n]+; "
      "rank 0 on \\1 waits for it in step [0-9]+, [^;\n]+; ending the job");
  EXPECT_TRUE(std::regex_search(job.output(), named)) << job.output();
  EXPECT_TRUE(exit_record("hung").starts_with("7 rank 1 on ")) << exit_record("hung");
}

TEST_F(Waiting, ANodeWhoseOnlyRankIsStoppedIsNamedByTheOthers) {
  Process job = start(under_mpirun(quick("frozen", {})), kNodeEach, file("frozen.log"));
  const auto ranks = ranks_in_training(job, "frozen");
  ASSERT_EQ(ranks.size(), 3u);
  kill(ranks.at(1), SIGSTOP);
  EXPECT_EQ(job.wait(5.0 + kLaunchers), 7) << job.output();
  const std::regex named(
      " \\(rank 1\\) has given no sign of life for [0-9.]+ s: its processes are stopped, or the network is "
      "gone; rank [02] waits for it in step ");
  EXPECT_TRUE(std::regex_search(job.output(), named)) << job.output();
  expect_all_ended(ranks);
}

}  // namespace
}  // namespace cifar_mpi::test
