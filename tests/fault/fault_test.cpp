#include <gtest/gtest.h>
#include <pty.h>

#include <ctime>
#include <iostream>
#include <memory>
#include <random>

#include "fault/job.hpp"
#include "support/temp_dir.hpp"

/// Whatever happens to a run, it ends soon, and started again it comes to the same end.
namespace cifar_mpi::test {
namespace {

const std::string kBin = CIFAR_MPI_BIN;
const std::string kTrain = kBin + "/cifar_mpi_train";
constexpr int kRanks = 3;
constexpr double kTimeout = 5.0;
/// From the moment the ranks are gone: mpirun's two pauses of a second, and a loaded machine.
constexpr double kLaunchers = 12.0;

class Fault : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempDir>();
    for (const auto& [name, value] : settings()) setenv(name.c_str(), value.c_str(), 1);
    unsetenv("CIFAR_MPI_DATA");
    pack("512", "small.h5");
    run_to_end("undisturbed", small("undisturbed"));
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static Environment settings() {
    return {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
            {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
            {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
            {"OMPI_MCA_hwloc_base_binding_policy", "none"},
            {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"},
            {"PRTE_MCA_hwloc_default_binding_policy", "none"},
            {"OMPI_MCA_btl", "^tcp"},
            {"OMPI_MCA_odls_base_sigkill_timeout", "1"},
            {"OMP_NUM_THREADS", "1"}};
  }
  static std::string file(const std::string& name) { return *folder_ / name; }
  static void pack(const std::string& images, const std::string& name) {
    Process packed =
        start({kBin + "/cifar_mpi_pack", "--synthetic", images, "--out", file(name)}, {}, file("pack.log"));
    ASSERT_EQ(packed.wait(60.0), 0) << packed.output();
  }

  using Words = std::vector<std::string>;
  static Words small(const std::string& run) {
    return {kTrain,
            "--data",
            file("small.h5"),
            "--run-dir",
            file(run),
            "--device",
            "cpu",
            "--threads",
            "1",
            "--batch-size",
            "8",
            "--steps",
            "60",
            "--timeout",
            "5",
            "--log-every",
            "1",
            "--checkpoint-every",
            "7"};
  }
  static Words under_mpirun(const Words& words, int ranks = kRanks) {
    Words all{CIFAR_MPI_MPIRUN, "-np", std::to_string(ranks)};
    all.insert(all.end(), words.begin(), words.end());
    return all;
  }
  static Words with(Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  /// Open MPI 5 gives the ranks half a second, whatever is asked of it.
  static bool mpirun_has_patience() {
    Process asked = start({CIFAR_MPI_MPIRUN, "--version"}, {}, file("version.log"));
    asked.wait(30.0);
    return asked.output().find(") 4.") != std::string::npos;
  }

  /// Starts it again until it says that it is done.
  static void run_to_end(const std::string& run, const Words& words) {
    for (int attempt = 0; attempt < 3; ++attempt) {
      Process job = start(under_mpirun(words), {}, file(run + ".log"));
      const int code = job.wait(100.0);
      if (code == 0) return;
      ASSERT_EQ(code, 75) << job.output();
    }
    FAIL() << "the run does not come to its end";
  }
  /// The four groups of the last checkpoint are those of the undisturbed run.
  static void expect_same_end(const std::string& run) {
    run_to_end(run, small(run));
    const std::string name = "/checkpoints/step_000000060.h5";
    for (const char* group : {"/model", "/ema", "/optimizer", "/progress"}) {
      Process diff = start({"h5diff", file("undisturbed" + name), file(run + name), group, group}, {},
                           file(run + ".diff"));
      EXPECT_EQ(diff.wait(60.0), 0) << group << ": " << diff.output();
    }
  }
  static bool has_step(const std::string& run, int step) {
    return text_of(file(run) + "/metrics.jsonl").find("{\"step\":" + std::to_string(step) + ",") !=
           std::string::npos;
  }
  /// Waits until the run is in mid-training, and all its ranks are known.
  static std::map<int, pid_t> ranks_in_training(const Process& job, const std::string& run, int step = 10) {
    EXPECT_TRUE(wait_until(60.0, [&] { return has_step(run, step); })) << job.output();
    return ranks_of(job.pid());
  }
  static void expect_all_ended(const std::map<int, pid_t>& ranks) {
    for (const auto& [rank, pid] : ranks)
      EXPECT_TRUE(wait_until(2.0, [pid = pid] { return !runs(pid); })) << "rank " << rank;
  }
  static std::string exit_record(const std::string& run) { return text_of(file(run) + "/exit"); }
  /// Longer than anybody waits, so that nothing is over before it is disturbed.
  static Words endless(const std::string& run) { return with(small(run), {"--steps", "1000000"}); }

 private:
  static inline std::unique_ptr<TempDir> folder_;
};

TEST_F(Fault, AStoppedRankIsNamedAndTheJobEndsWithinTheLimit) {
  Process job = start(under_mpirun(endless("stopped")), {}, file("stopped.log"));
  const auto ranks = ranks_in_training(job, "stopped");
  ASSERT_EQ(ranks.size(), 3u);
  const double began = seconds_now();
  kill(ranks.at(1), SIGSTOP);
  EXPECT_EQ(job.wait(kTimeout + kLaunchers), 7) << job.output();
  EXPECT_GE(seconds_now() - began, kTimeout - 0.5);
  const std::string pid = "(pid " + std::to_string(ranks.at(1)) + ")";
  EXPECT_NE(job.output().find(pid + " has shown no sign of life for"), std::string::npos) << job.output();
  EXPECT_NE(job.output().find(" waits for it in step "), std::string::npos) << job.output();
  EXPECT_TRUE(exit_record("stopped").starts_with("7 rank 1 on ")) << exit_record("stopped");
  expect_all_ended(ranks);
  expect_same_end("stopped");
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
  EXPECT_NE(job.output().find("s while watching for a checkpoint, it is probably stopped"), std::string::npos)
      << job.output();
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
    Process job = start(under_mpirun(endless(run)), {}, file(run + ".log"));
    const auto ranks = ranks_in_training(job, run);
    ASSERT_EQ(ranks.size(), 3u);
    kill(ranks.at(victim), SIGKILL);
    // The others need no launcher to leave: they see that it is gone.
    for (const auto& [rank, pid] : ranks)
      EXPECT_TRUE(wait_until(4.0, [pid = pid] { return !runs(pid); })) << "rank " << rank;
    EXPECT_GT(job.wait(kLaunchers), 0) << job.output();
    EXPECT_NE(job.output().find("(pid " + std::to_string(ranks.at(victim)) + ") has ended in step "),
              std::string::npos)
        << job.output();
    EXPECT_TRUE(exit_record(run).starts_with("7 rank " + std::to_string(victim))) << exit_record(run);
    expect_same_end(run);
  }
}

TEST_F(Fault, RanksStopWithACheckpointWhenTheirMpirunIsKilled) {
  Process job = start(under_mpirun(with(endless("orphans"), {"--checkpoint-every", "1000000"})), {},
                      file("orphans.log"));
  const auto ranks = ranks_in_training(job, "orphans");
  ASSERT_EQ(ranks.size(), 3u);
  kill(job.pid(), SIGKILL);
  for (const auto& [rank, pid] : ranks)
    EXPECT_TRUE(wait_until(20.0, [pid = pid] { return !runs(pid); })) << "rank " << rank;
  job.wait(kLaunchers);
  EXPECT_TRUE(exit_record("orphans").starts_with("75 stopped on request at step ")) << exit_record("orphans");
}

TEST_F(Fault, ARankThatLeavesWithoutAWordEndsTheJob) {
  const Environment fault{{"LD_PRELOAD", CIFAR_MPI_FAULT_PRELOAD},
                          {"FAULT", "exit:1:10"},
                          {"FAULT_WATCH", file("left") + "/metrics.jsonl"}};
  Process job = start(under_mpirun(endless("left")), fault, file("left.log"));
  const auto ranks = ranks_in_training(job, "left", 9);
  EXPECT_EQ(job.wait(kLaunchers + 2.0), 3) << job.output();
  expect_all_ended(ranks);
  expect_same_end("left");
}

TEST_F(Fault, ARankThatThrowsInTheLoopEndsTheJobWithItsCode) {
  const Environment fault{{"LD_PRELOAD", CIFAR_MPI_FAULT_PRELOAD}, {"FAULT", "mpi:2:2000"}};
  Process job =
      start(under_mpirun(with(endless("thrown"), {"--all-reduce", "ring"})), fault, file("thrown.log"));
  EXPECT_EQ(job.wait(60.0), 7) << job.output();
  EXPECT_NE(job.output().find("rank 2: MPI failed while"), std::string::npos) << job.output();
  EXPECT_TRUE(exit_record("thrown").starts_with("7 rank 2: MPI failed while")) << exit_record("thrown");
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
  pack("4096", "large.h5");
  Words words = with(small("slow"), {"--data", file("large.h5"), "--steps", "1000", "--batch-size", "1024",
                                     "--checkpoint-every", "1000", "--timeout", "60"});
  const Environment patient{{"OMPI_MCA_odls_base_sigkill_timeout", "20"}};
  Process job = start(under_mpirun(words, 2), patient, file("slow.log"));
  const auto ranks = ranks_in_training(job, "slow", 2);
  ASSERT_EQ(ranks.size(), 2u);
  job.signal(SIGTERM);
  // With the first notice, long before SIGTERM comes; a step takes about half a second on an idle machine.
  for (const auto& [rank, pid] : ranks)
    EXPECT_TRUE(wait_until(18.0, [pid = pid] { return !runs(pid); })) << "rank " << rank;
  EXPECT_TRUE(exit_record("slow").starts_with("75 stopped on request"))
      << exit_record("slow") << job.output();
  EXPECT_EQ(job.wait(0.0), -1);  // mpirun sleeps on; it is ended with the test
}

/// Starts `words` on a terminal of its own; what it prints goes to `log`.
std::pair<pid_t, int> start_in_terminal(const std::vector<std::string>& words,
                                        const Environment& environment) {
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) become(words, environment);
  fcntl(terminal, F_SETFL, O_NONBLOCK);
  return {child, terminal};
}

/// Reads the terminal so that nobody blocks on it.
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
    // Twice: the second comes while the steps are too long for the first to be heeded.
    Words words = with(endless(run), {"--batch-size", twice ? "512" : "8"});
    const auto [pid, terminal] = start_in_terminal(words, {});
    Process job(pid, "");
    std::string output;
    EXPECT_TRUE(wait_until(60.0, [&] { return output += read_all(terminal), has_step(run, twice ? 2 : 5); }))
        << output;
    ASSERT_EQ(write(terminal, "\x03", 1), 1);
    if (twice) {
      sleep_s(0.05);
      ASSERT_EQ(write(terminal, "\x03", 1), 1);
    }
    wait_until(30.0, [&, process = &job] { return output += read_all(terminal), process->wait(0.0) >= 0; });
    EXPECT_EQ(job.wait(1.0), twice ? 128 + SIGINT : 75) << output;
    EXPECT_EQ(exit_record(run).starts_with("75 stopped on request"), !twice) << exit_record(run);
    close(terminal);
  }
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

TEST_F(Fault, AnMpirunThatSleepsAndGoesOnStopsNothing) {
  Process job = start(under_mpirun(endless("slept")), {}, file("slept.log"));
  ranks_in_training(job, "slept");
  job.signal(SIGTSTP);
  sleep_s(2.0);
  job.signal(SIGCONT);
  const auto step = [&] { return text_of(file("slept") + "/metrics.jsonl").size(); };
  const auto before = step();
  EXPECT_TRUE(wait_until(20.0, [&] { return step() > before + 2000; })) << job.output();
  EXPECT_EQ(job.wait(0.0), -1);
  job.signal(SIGUSR1);
  EXPECT_EQ(job.wait(kLaunchers), 75) << job.output();
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
  EXPECT_EQ(job.wait(40.0), 75) << job.output();
  EXPECT_NE(job.output().find("stopping: --stop-after is over"), std::string::npos) << job.output();
  const Environment slurm{{"SLURM_JOB_END_TIME", std::to_string(std::time(nullptr) + 10)}};
  Process second = start(under_mpirun(endless("time")), slurm, file("time.log"));
  EXPECT_EQ(second.wait(40.0), 75) << second.output();
  EXPECT_NE(second.output().find("stopping: the job ends in"), std::string::npos) << second.output();
  expect_same_end("time");
}

TEST_F(Fault, TwentyKillsAtRandomMomentsLoseNothing) {
  const auto seed = static_cast<unsigned>(std::time(nullptr));
  std::cout << "seed " << seed << std::endl;
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> moment(0.0, 2.5);
  int runs_done = 0;
  std::string run = "random_0";
  for (int kills = 0; kills < 20;) {
    Process job = start(under_mpirun(small(run)), {}, file(run + ".log"));
    sleep_s(moment(random));
    const auto ranks = ranks_of(job.pid());
    const int victim = kills % 2 == 0 ? 0 : 1 + static_cast<int>(random() % 2);
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
