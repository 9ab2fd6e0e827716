#include <gtest/gtest.h>
#include <pty.h>

#include <ctime>
#include <iostream>
#include <random>
#include <regex>

#include "fault/disturbed_run.hpp"

/// After any fault a run ends soon, and rerunning it gives the same result.
namespace cifar_mpi::test {
namespace {

TEST_F(Fault, AStoppedRankIsNamedAndTheJobEndsWithinTheLimit) {
  Process job = start(under_mpirun(endless("stopped")), {}, file("stopped.log"));
  const auto ranks = ranks_in_training(job, "stopped");
  ASSERT_EQ(ranks.size(), 3u);
  const double began = seconds_now();
  kill(ranks.at(1), SIGSTOP);
  EXPECT_EQ(job.wait(kTimeout + kLaunchers), 7) << job.output();
  EXPECT_GE(seconds_now() - began, kTimeout - 0.5);
  const std::string output = job.output(), pid = std::to_string(ranks.at(1));
  std::smatch seconds;
  ASSERT_TRUE(std::regex_search(
      output, seconds, std::regex("\\(pid " + pid + "\\) has shown no sign of life for ([0-9.]+) s")))
      << output;
  EXPECT_LT(std::stod(seconds[1]), 3 * kTimeout) << output;
  EXPECT_TRUE(contains(job.output(), " waits for it in step "));
  EXPECT_TRUE(exit_record("stopped").starts_with("7 rank 1 on ")) << exit_record("stopped");
  expect_all_ended(ranks);
  expect_same_end("stopped");
}

TEST_F(Fault, ARankThatIsStoppedWhileMpiStartsEndsTheJobWithinTheLimit) {
  for (const char* when : {"before-init:1:0", "after-init:0:0"}) {
    SCOPED_TRACE(when);
    const Environment fault{{"LD_PRELOAD", CIFAR_MPI_FAULT_PRELOAD}, {"FAULT", when}};
    Process job =
        start(under_mpirun(with(small("unstarted"), {"--timeout", "2"})), fault, file("unstarted.log"));
    std::map<int, pid_t> ranks;
    ASSERT_TRUE(wait_until(60.0, [&] { return (ranks = ranks_of(job.pid())).size() == 3; }));
    EXPECT_GT(job.wait(10.0 + kLaunchers), 0) << job.output();
    EXPECT_TRUE(contains(job.output(), "MPI has not started on all ranks within 10 s"));
    expect_all_ended(ranks);
  }
}

TEST_F(Fault, ARankThatIsAskedToStopWhileMpiStartsStopsWithACheckpoint) {
  const Environment fault{{"LD_PRELOAD", CIFAR_MPI_FAULT_PRELOAD}, {"FAULT", "asked:1:0"}};
  Process job = start(under_mpirun(endless("asked")), fault, file("asked.log"));
  EXPECT_GT(job.wait(kTimeout + kLaunchers), 0) << job.output();
  EXPECT_TRUE(exit_record("asked").starts_with("75 stopped on request at step ")) << exit_record("asked");
  expect_same_end("asked");
}

TEST_F(Fault, AStoppedRankOfTheOtherProgramsIsNamedToo) {
  const Words watch{
      kBin + "/cifar_mpi_eval", "--watch",          "--interval", "0.1", "--timeout", "2", "--data",
      file("small.h5"),         file("undisturbed")};
  Process job = start(under_mpirun(watch, 2), {}, file("watch.log"));
  ASSERT_TRUE(wait_until(60.0, [&] { return job.output().find("precision") != std::string::npos; }))
      << job.output();
  const auto ranks = ranks_of(job.pid());
  ASSERT_EQ(ranks.size(), 2u);
  kill(ranks.at(1), SIGSTOP);
  EXPECT_EQ(job.wait(2.0 + kLaunchers), 7) << job.output();
  // rank 0 prints the evaluation, and rank 1 may not know of it yet
  const std::regex named(" \\(pid " + std::to_string(ranks.at(1)) +
                         "\\) has shown no sign of life for [0-9.]+ s while (evaluating|watching for a "
                         "checkpoint), and is probably stopped");
  EXPECT_TRUE(std::regex_search(job.output(), named)) << job.output();
  expect_all_ended(ranks);

  const Words bench{kBin + "/cifar_mpi_bench", "allreduce", "--sizes", "4K", "--seconds", "3000"};
  Process measured = start(under_mpirun(bench, 2), {}, file("bench.log"));
  ASSERT_TRUE(wait_until(60.0, [&] { return ranks_of(measured.pid()).size() == 2; }));
  sleep_s(2.0);
  const auto busy = ranks_of(measured.pid());
  ASSERT_EQ(busy.size(), 2u);
  kill(busy.at(1), SIGKILL);
  EXPECT_GT(measured.wait(kLaunchers), 0) << measured.output();
  expect_all_ended(busy);
}

TEST_F(Fault, AKilledRankEndsTheJobAtOnce) {
  for (const int victim : {0, 2}) {
    const std::string run = "killed_" + std::to_string(victim);
    // mpirun sees it, too; its delay leaves the others time to report it.
    const Environment patient{{"OMPI_MCA_odls_base_sigkill_timeout", "3"}};
    Process job = start(under_mpirun(endless(run)), patient, file(run + ".log"));
    const auto ranks = ranks_in_training(job, run);
    ASSERT_EQ(ranks.size(), 3u);
    kill(ranks.at(victim), SIGKILL);
    // The others exit without the launcher: they see within two seconds that it is gone, and a rank that may
    // not print exits six seconds later; all that takes longer on a busy machine.
    for (const auto& [rank, pid] : ranks)
      EXPECT_TRUE(wait_until(kLaunchers, [pid = pid] { return !runs(pid); })) << "rank " << rank;
    EXPECT_GT(job.wait(kLaunchers), 0) << job.output();
    if (mpirun_has_patience()) {
      EXPECT_TRUE(
          contains(job.output(), "(pid " + std::to_string(ranks.at(victim)) + ") has ended in step "));
      EXPECT_TRUE(exit_record(run).starts_with("7 rank " + std::to_string(victim))) << exit_record(run);
    }
    expect_same_end(run);
  }
}

/// Three workers and a server give the result of three ranks that sum in rank order, whichever rank is lost.
TEST_F(Fault, AServerThatIsStoppedIsNamedAndTheRunGoesOnFromTheCheckpoint) {
  const Words served{"--update", "server"};
  Process job = start(under_mpirun(with(endless("served"), served), 4), {}, file("served.log"));
  const auto ranks = ranks_in_training(job, "served");
  ASSERT_EQ(ranks.size(), 4u);
  kill(ranks.at(3), SIGSTOP);
  EXPECT_EQ(job.wait(kTimeout + kLaunchers), 7) << job.output();
  const std::regex named("\\(pid " + std::to_string(ranks.at(3)) +
                         "\\) has shown no sign of life for [0-9.]+ s in step [0-9]+, "
                         "(wait for pushes|update|compare servers|answer workers|advance|between tasks)");
  EXPECT_TRUE(std::regex_search(job.output(), named)) << job.output();
  EXPECT_TRUE(exit_record("served").starts_with("7 rank 3 on ")) << exit_record("served");
  expect_all_ended(ranks);
  run_to_end("served", under_mpirun(with(small("served"), served), 4));
  expect_same_groups("served", "undisturbed", {"/model", "/ema", "/optimizer"});
}

TEST_F(Fault, RanksStopWithACheckpointWhenTheirMpirunIsKilled) {
  // Open MPI ends ranks about a second after their mpirun, which a busy machine may need for a few steps.
  const Environment patient{{"OMPI_MCA_mpi_abort_delay", "5"}};
  Process job = start(under_mpirun(with(endless("orphans"), {"--checkpoint-every", "1000000"})), patient,
                      file("orphans.log"));
  const auto ranks = ranks_in_training(job, "orphans");
  ASSERT_EQ(ranks.size(), 3u);
  kill(job.pid(), SIGKILL);
  for (const auto& [rank, pid] : ranks)
    EXPECT_TRUE(wait_until(kLaunchers, [pid = pid] { return !runs(pid); })) << "rank " << rank;
  job.wait(kLaunchers);
  EXPECT_TRUE(exit_record("orphans").starts_with("75 stopped because mpirun ended, at step "))
      << exit_record("orphans") << job.output();
  expect_same_end("orphans");
}

TEST_F(Fault, ARankThatLeavesWithoutAWordEndsTheJob) {
  const Environment fault{{"LD_PRELOAD", CIFAR_MPI_FAULT_PRELOAD},
                          {"FAULT", "exit:1:12"},  // step 10: two lines come before the first step
                          {"FAULT_WATCH", file("left") + "/metrics.jsonl"}};
  Process job = start(under_mpirun(endless("left")), fault, file("left.log"));
  const auto ranks = ranks_in_training(job, "left", 9);
  EXPECT_EQ(job.wait(kLaunchers + 2.0), 3) << job.output();
  expect_all_ended(ranks);
  expect_same_end("left");
}

TEST_F(Fault, ARankThatThrowsInTheLoopEndsTheJobWithItsCode) {
  const Environment fault{{"LD_PRELOAD", CIFAR_MPI_FAULT_PRELOAD},
                          {"FAULT", "mpi:2:12"},  // step 10: two lines come before the first step
                          {"FAULT_WATCH", file("thrown") + "/metrics.jsonl"}};
  Process job =
      start(under_mpirun(with(endless("thrown"), {"--all-reduce", "ring"})), fault, file("thrown.log"));
  EXPECT_EQ(job.wait(60.0), 7) << job.output();
  EXPECT_TRUE(contains(job.output(), "rank 2: MPI failed while"));
  EXPECT_TRUE(exit_record("thrown").starts_with("7 rank 2: MPI failed while")) << exit_record("thrown");
  const Words ring{"--all-reduce", "ring"};
  run_to_end("thrown", under_mpirun(with(small("thrown"), ring)));
  run_to_end("ring", under_mpirun(with(small("ring"), ring)));
  expect_same_groups("thrown", "ring");
}

TEST_F(Fault, ARunThatDoesNotHoldItsDirectoryYetLeavesNoRecordThere) {
  const Environment fault{{"LD_PRELOAD", CIFAR_MPI_FAULT_PRELOAD}, {"FAULT", "lock:0:0"}};
  Process job = start(under_mpirun(with(small("not_ours"), {"--timeout", "2"})), fault, file("not_ours.log"));
  EXPECT_EQ(job.wait(5.0 * 2.0 + kLaunchers + 20.0), 7) << job.output();
  EXPECT_TRUE(contains(job.output(), "while starting"));
  EXPECT_EQ(exit_record("not_ours"), "");
}

TEST_F(Fault, OneRankThatIsAskedToStopStopsAll) {
  Process job = start(under_mpirun(endless("asked")), {}, file("asked.log"));
  const auto ranks = ranks_in_training(job, "asked");
  ASSERT_EQ(ranks.size(), 3u);
  kill(ranks.at(2), SIGTERM);
  EXPECT_EQ(job.wait(kLaunchers), 75) << job.output();
  EXPECT_TRUE(exit_record("asked").starts_with("75 stopped on request")) << exit_record("asked");
  expect_same_end("asked");
}

TEST_F(Fault, AnMpirunThatIsAskedToStopLeavesACheckpointAlsoOfASlowStep) {
  if (!mpirun_has_patience()) GTEST_SKIP() << "this mpirun kills at once; stop it with SIGUSR1";
  const Words words =
      paced(with(small("slow"), {"--steps", "1000", "--checkpoint-every", "1000", "--timeout", "60"}), 50);
  const Environment patient{{"OMPI_MCA_odls_base_sigkill_timeout", "20"}};
  Process job = start(under_mpirun(words, 2), patient, file("slow.log"));
  const auto ranks = ranks_in_training(job, "slow", 2);
  ASSERT_EQ(ranks.size(), 2u);
  job.signal(SIGTERM);
  // With the first notice, long before SIGTERM comes; a step takes more than half a second.
  for (const auto& [rank, pid] : ranks)
    EXPECT_TRUE(wait_until(18.0, [pid = pid] { return !runs(pid); })) << "rank " << rank;
  EXPECT_TRUE(exit_record("slow").starts_with("75 stopped on request"))
      << exit_record("slow") << job.output();
  EXPECT_EQ(job.wait(0.0), -1);  // mpirun stays asleep; the test's end kills it
}

/// Starts `words` on its own terminal, with its output in `log`.
std::pair<pid_t, int> start_in_terminal(const std::vector<std::string>& words,
                                        const Environment& environment) {
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) become(words, environment);
  fcntl(terminal, F_SETFL, O_NONBLOCK);
  return {child, terminal};
}

/// Reads the terminal so that no process blocks on it.
std::string read_all(int terminal) {
  std::string text;
  char chunk[4096];
  for (ssize_t n = 0; (n = read(terminal, chunk, sizeof chunk)) > 0;)
    text.append(chunk, static_cast<std::size_t>(n));
  return text;
}

TEST_F(Fault, ControlCStopsWithACheckpointAndASecondEndsAtOnce) {
  for (const bool twice : {false, true}) {
    const std::string run = twice ? "twice" : "once";
    // Twice: steps are so long that the second comes before the first takes effect.
    const Words words = twice ? paced(with(small(run), {"--steps", "1000"}), 50) : endless(run);
    const auto [pid, terminal] = start_in_terminal(words, {});
    Process job(pid, "");
    std::string output;
    EXPECT_TRUE(wait_until(60.0, [&] { return output += read_all(terminal), has_step(run, twice ? 2 : 5); }))
        << output;
    ASSERT_EQ(write(terminal, "\x03", 1), 1);
    // A third one if it is needed: a process that gets no core does not tell two signals from one.
    for (int more = 0; twice && more < 2 && job.wait(0.25) < 0; ++more)
      static_cast<void>(!write(terminal, "\x03", 1));
    wait_until(30.0, [&, process = &job] { return output += read_all(terminal), process->wait(0.0) >= 0; });
    EXPECT_EQ(job.wait(1.0), twice ? 128 + SIGINT : 75) << output;
    EXPECT_EQ(exit_record(run).starts_with("75 stopped on request"), !twice) << exit_record(run);
    close(terminal);
  }
  run_to_end("once", small("once"));
  run_to_end("alone", small("alone"));
  expect_same_groups("once", "alone");
}

TEST_F(Fault, ControlCOnMpirunStopsWithACheckpoint) {
  if (!mpirun_has_patience()) GTEST_SKIP() << "this mpirun kills at once; stop it with SIGUSR1";
  const auto [pid, terminal] = start_in_terminal(under_mpirun(endless("mpirun_c")), {});
  Process job(pid, "");
  std::string output;
  EXPECT_TRUE(wait_until(60.0, [&] { return output += read_all(terminal), has_step("mpirun_c", 5); }))
      << output;
  ASSERT_EQ(write(terminal, "\x03", 1), 1);
  wait_until(30.0, [&, process = &job] { return output += read_all(terminal), process->wait(0.0) >= 0; });
  EXPECT_TRUE(exit_record("mpirun_c").starts_with("75 stopped on request"))
      << exit_record("mpirun_c") << output;
  close(terminal);
  expect_same_end("mpirun_c");
}

/// A stopped mpirun does not read the log, so rank 0 soon waits to write its next line.
TEST_F(Fault, NoPauseOfMpirunOrOfTheWholeJobStopsARun) {
  // At full pace, which soon fills the pipe of the log.
  const Words fast = with(small("slept"), {"--steps", "1000000", "--timeout", "2"});
  Process job = start(under_mpirun(fast), {}, file("slept.log"));
  const auto ranks = ranks_in_training(job, "slept");
  const auto step = [&] { return text_of(file("slept") + "/metrics.jsonl").size(); };
  const auto makes_no_step = [&] {
    const auto before = step();
    sleep_s(1.0);
    return step() == before;
  };
  const auto pause = [&](const char* what, const std::vector<pid_t>& processes, int signal, double seconds) {
    for (const pid_t process : processes) kill(process, signal);
    EXPECT_TRUE(wait_until(60.0, makes_no_step)) << what;
    sleep_s(seconds);
    for (const pid_t process : processes) kill(process, SIGCONT);
    const auto before = step();
    EXPECT_TRUE(wait_until(60.0, [&] { return step() > before + 2000; })) << what << ": " << job.output();
    EXPECT_EQ(job.wait(0.0), -1) << what;
  };
  pause("Ctrl-Z", {job.pid()}, SIGTSTP, 0.5);
  pause("mpirun", {job.pid()}, SIGSTOP, 2.5);
  std::vector<pid_t> all{job.pid()};
  for (const auto& [rank, pid] : ranks) all.push_back(pid);
  pause("all", all, SIGSTOP, 1.5);
  job.signal(SIGUSR1);
  EXPECT_EQ(job.wait(kLaunchers), 75) << job.output();
  expect_all_ended(ranks);
}

TEST_F(Fault, AnMpirunThatIsAskedToStopLosesNothing) {
  Process job = start(under_mpirun(endless("term")), {}, file("term.log"));
  const auto ranks = ranks_in_training(job, "term");
  job.signal(SIGTERM);
  EXPECT_GT(job.wait(kLaunchers), 0) << job.output();
  expect_all_ended(ranks);
  if (mpirun_has_patience()) {
    EXPECT_TRUE(exit_record("term").starts_with("75 stopped on request")) << exit_record("term");
  }
  expect_same_end("term");
}

TEST_F(Fault, AKillAroundTheRenamingOfACheckpointLosesNothing) {
  for (const char* when : {"before-rename:0:2", "after-rename:0:2"}) {
    const std::string run = std::string(when).substr(0, 5);
    const Environment fault{{"LD_PRELOAD", CIFAR_MPI_FAULT_PRELOAD}, {"FAULT", when}};
    Process job = start(under_mpirun(small(run)), fault, file(run + ".log"));
    EXPECT_GT(job.wait(60.0), 0) << job.output();
    EXPECT_EQ(std::filesystem::exists(file(run) + "/checkpoints/step_000000014.h5"), run == "after");
    EXPECT_TRUE(std::filesystem::exists(file(run) + "/checkpoints/step_000000007.h5"));
    expect_same_end(run);
  }
}

TEST_F(Fault, ARunStopsByItselfWhenItsTimeOrItsJobIsOver) {
  Process job = start(under_mpirun(with(endless("time"), {"--stop-after", "0.005"})), {}, file("time.log"));
  EXPECT_EQ(job.wait(100.0), 75) << job.output();
  EXPECT_TRUE(contains(job.output(), "stopping: --stop-after is reached"));
  expect_same_end("time");
  // Ten seconds of training, and the margin. Its own run, since it gets further than the undisturbed one.
  const Environment slurm{{"SLURM_JOB_END_TIME", std::to_string(std::time(nullptr) + 20)}};
  Process second = start(under_mpirun(endless("job")), slurm, file("job.log"));
  EXPECT_EQ(second.wait(100.0), 75) << second.output();
  EXPECT_TRUE(contains(second.output(), "stopping: the job ends in"));
  EXPECT_TRUE(exit_record("job").starts_with("75 stopped on request at step ")) << exit_record("job");
}

TEST_F(Fault, TwentyKillsAtRandomMomentsLoseNothing) {
  const auto seed = static_cast<unsigned>(std::time(nullptr));
  std::cout << "seed " << seed << std::endl;
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> moment(0.0, 2.5);
  int runs_done = 0;
  std::string run = "random_0";
  for (int kills = 0; kills < 20;) {
    Process job = start(under_mpirun(paced(small(run), 3)), {}, file(run + ".log"));
    const int victim = kills % 2 == 0 ? 0 : 1 + static_cast<int>(random() % 2);
    ASSERT_TRUE(wait_until(60.0, [&] { return ranks_of(job.pid()).count(victim) == 1; })) << job.output();
    // Every other victim dies after a step, also on a slow machine, unless the run was killed at its end.
    const auto trains = [&] {
      return job.output().find(": step ") != std::string::npos || ranks_of(job.pid()).empty();
    };
    EXPECT_TRUE(kills % 4 < 2 || wait_until(60.0, trains)) << job.output();
    sleep_s(moment(random));
    const auto ranks = ranks_of(job.pid());
    if (ranks.count(victim) == 1) {
      kill(ranks.at(victim), SIGKILL);
      ++kills;
    }
    const int code = job.wait(60.0);
    ASSERT_NE(code, -1) << "hangs, with seed " << seed << ": " << job.output();
    expect_all_ended(ranks);
    if (code != 0) continue;
    expect_same_end(run);
    run = "random_" + std::to_string(++runs_done);
  }
  expect_same_end(run);
}

}  // namespace
}  // namespace cifar_mpi::test
