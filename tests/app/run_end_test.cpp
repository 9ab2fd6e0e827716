#include <filesystem>

#include "app/programs.hpp"
#include "support/trace_reader.hpp"

/// The end of a run as scripts see it: RUN_DIR/exit, RUN_DIR/lock and the checkpoints, after any error.
namespace cifar_mpi::test {
namespace {

namespace fs = std::filesystem;

class RunEnd : public Programs {
 protected:
  static std::string train(const std::string& run, const std::string& options = "") {
    return kTrain + small(run) + " " + options;
  }
  /// Waits in the shell until `condition` holds, for at most 30 s.
  static std::string until(const std::string& condition) {
    return "for i in $(seq 600); do if " + condition + "; then break; fi; sleep 0.05; done; ";
  }
  static std::string exit_record(const std::string& run) { return read_file(file(run + "/exit")); }
  static void expect_unlocked(const std::string& run) { EXPECT_FALSE(fs::exists(file(run + "/lock"))); }
  /// Runs `script` where it may mount file systems; false if this machine does not allow that.
  static bool with_mounts(const std::string& script, Outcome& outcome) {
    const std::string unshare = run_command("unshare -m true").code == 0
                                    ? "unshare -m"
                                    : "unshare -rm";  // root needs no user namespace
    if (run_command(unshare + " mount -t tmpfs none " + file("")).code != 0) return false;
    write_file(file("mounts.sh"), script);
    outcome = run_command(unshare + " bash " + file("mounts.sh"));
    return true;
  }
};

TEST_F(RunEnd, IsRecordedWithItsCodeAndSentence) {
  ASSERT_EQ(mpirun(2, train("one")).code, 0);
  EXPECT_EQ(exit_record("one"), "0 done\n");
  EXPECT_EQ(mpirun(2, train("one", "--seed 2")).code, 4);
  EXPECT_EQ(exit_record("one"), "0 done\n")
      << "of the run that is finished, not of the start that is refused";
  EXPECT_EQ(mpirun(2, train("one")).code, 0);
  EXPECT_EQ(exit_record("one"), "0 done\n");
  expect_unlocked("one");

  EXPECT_EQ(mpirun(2, train("two", "--data " + file("none.h5"))).code, 3);
  EXPECT_FALSE(fs::exists(file("two"))) << "a refused start leaves no folder";
  EXPECT_EQ(mpirun(2, train("two", "--steps 50 --lr 1e8")).code, 8);
  EXPECT_TRUE(exit_record("two").starts_with("8 diverged")) << exit_record("two");
  EXPECT_EQ(mpirun(2, train("two", "--seed 2 --data " + file("none.h5"))).code, 3);
  EXPECT_TRUE(exit_record("two").starts_with("3 ")) << exit_record("two");
  expect_unlocked("two");

  write_file(file("by_rank.sh"),
             "name=small.h5; [ \"$OMPI_COMM_WORLD_RANK\" = 0 ] || name=missing.h5\nexec " +
                 train("three", "--data " + file("$name")));
  fs::create_directories(file("three"));
  EXPECT_EQ(mpirun(2, "bash " + file("by_rank.sh")).code, 3);
  EXPECT_TRUE(exit_record("three").starts_with("3 ")) << exit_record("three");
  EXPECT_TRUE(contains(exit_record("three"), "rank 1"));

  // A usage error that needs no run directory does not change it.
  EXPECT_EQ(run_command(train("one", "--lr nan")).code, 2);
  EXPECT_EQ(exit_record("one"), "0 done\n");
}

TEST_F(RunEnd, IsRecordedWhenTheRunIsStopped) {
  const Outcome outcome =
      run_command(train("stopped", "--steps 100000") + "& child=$!; " +
                  until("[ -s " + file("stopped/metrics.jsonl") + " ]") + "kill -USR1 $child; wait $child");
  EXPECT_EQ(outcome.code, 75) << outcome.output;
  EXPECT_TRUE(exit_record("stopped").starts_with("75 stopped on request at step")) << exit_record("stopped");
  expect_unlocked("stopped");
  EXPECT_TRUE(fs::exists(file("stopped/checkpoints/latest")));
}

/// The ten steps after the signal, as other programs decode them, and a resumed run.
TEST_F(RunEnd, IsNoneWhereASignalAsksForATrace) {
  const std::string trace = file("traced/trace");
  const Outcome outcome =
      run_command(train("traced", "--steps 100000") + "& child=$!; " +
                  until("[ -s " + file("traced/metrics.jsonl") + " ]") + "kill -USR2 $child; " +
                  until("ls " + trace + "/*.perfetto-trace") + "kill -USR1 $child; wait $child");
  ASSERT_EQ(outcome.code, 75) << outcome.output;
  EXPECT_TRUE(exit_record("traced").starts_with("75 stopped on request")) << exit_record("traced");
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(trace)) files.push_back(entry.path().string());
  ASSERT_EQ(files.size(), 1u);
  const TraceRead read = read_trace(read_file(files.front()));
  std::vector<std::string> steps;
  for (const TraceSlice& slice : read.slices) {
    if (read.path(slice.track).ends_with("/steps")) steps.push_back(slice.name);
  }
  ASSERT_EQ(steps.size(), 10u);
  const int first = std::stoi(steps.front().substr(5));
  EXPECT_EQ(fs::path(files.front()).filename(), "step_" + std::to_string(first) + ".perfetto-trace");
  for (int i = 0; i < 10; ++i)
    EXPECT_EQ(steps[static_cast<std::size_t>(i)], "step " + std::to_string(first + i));
}

TEST_F(RunEnd, IsThatOfTheFirstRunWhenASecondIsRefused) {
  const Outcome outcome =
      run_command(train("shared", "--steps 100000 --lr 0.001") + "& first=$!; " +
                  until("[ -s " + file("shared/metrics.jsonl") + " ]") + "cp " + file("shared/lock") + " " +
                  file("lock_before") + "; " + train("shared", "--steps 100000 --lr 0.001") +
                  "; echo second: $?; ls " + file("shared/exit") + "; cmp " + file("shared/lock") + " " +
                  file("lock_before") + " && echo same lock; kill -USR1 $first; wait $first; echo first: $?");
  EXPECT_EQ(count_lines_with(outcome.output, "second: 4"), 1) << outcome.output;
  EXPECT_EQ(count_lines_with(outcome.output, "is in use by process"), 1) << outcome.output;
  EXPECT_EQ(count_lines_with(outcome.output, "shared/exit"), 1) << outcome.output;  // ls: there is none
  EXPECT_EQ(count_lines_with(outcome.output, "same lock"), 1) << outcome.output;
  EXPECT_EQ(count_lines_with(outcome.output, "first: 75"), 1) << outcome.output;
  expect_unlocked("shared");
}

TEST_F(RunEnd, OfAKilledRunLeavesALockThatTheNextOneTakesOver) {
  const std::string forever = train("killed", "--steps 100000 --checkpoint-every 5");
  const Outcome killed = run_command(forever + "& child=$!; " +
                                     until("[ -e " + file("killed/checkpoints/step_000000005.h5") + " ]") +
                                     "kill -9 $child; wait $child");
  EXPECT_EQ(killed.code, 137) << killed.output;
  EXPECT_TRUE(fs::exists(file("killed/lock")));
  EXPECT_FALSE(fs::exists(file("killed/exit")));
  write_file(file("killed/checkpoints/step_000000099.h5.123-0.tmp"), "half");
  const std::string last = output_of(mpirun(1, train("killed", "--steps 1")));
  EXPECT_EQ(count_lines_with(last, "took over the lock of process"), 1) << last;
  EXPECT_EQ(count_lines_with(last, "that process is gone"), 1) << last;
  EXPECT_FALSE(fs::exists(file("killed/checkpoints/step_000000099.h5.123-0.tmp")));
  expect_unlocked("killed");
}

TEST_F(RunEnd, InTheLastEvaluationLosesNothing) {
  // 8000 test images: evaluation takes two seconds, steps take almost none.
  ASSERT_EQ(run_command(kPack + " --synthetic 40000 --image 24x24x3 --out " + file("long.h5")).code, 0);
  const std::string data = "--data " + file("long.h5");
  const std::string state = file("evaluated/checkpoints/step_000000002.h5");
  const Outcome killed = run_command(train("evaluated", data) + "& child=$!; " +
                                     until("[ -e " + state + " ]") + "kill -9 $child; wait $child");
  EXPECT_EQ(killed.code, 137) << killed.output;
  EXPECT_FALSE(contains(killed.output, "test accuracy"));
  const std::string next = output_of(run_command(train("evaluated", data)));
  EXPECT_EQ(count_lines_with(next, "test accuracy"), 1) << next;
  EXPECT_FALSE(contains(next, "loss ="));
  EXPECT_EQ(count_lines_with(read_file(file("evaluated/metrics.jsonl")), "test_accuracy"), 1);
  EXPECT_TRUE(contains(run_command(train("evaluated", data)).output, "this run is finished"));
}

TEST_F(RunEnd, OnAFullDiskComesAfterTheLastStep) {
  // A file-size limit smaller than a checkpoint (8.15 MiB). One rank only, because the limit also holds for
  // MPI's shared memory.
  const Outcome outcome = run_command("ulimit -f 8192; OMPI_MCA_btl=self " + kTrain + usual("limited") +
                                      " --steps 4 --checkpoint-every 1 --log-every 1");
  EXPECT_EQ(outcome.code, 5) << outcome.output;
  for (const char* step : {"1", "2", "3", "4"}) {
    const std::string text = std::string("warning: the checkpoint of step ") + step + " could not be written";
    EXPECT_EQ(count_lines_with(outcome.output, text), 1) << outcome.output;
  }
  EXPECT_EQ(count_lines_with(outcome.output, ": step 4, loss ="), 1) << outcome.output;
  EXPECT_TRUE(exit_record("limited").starts_with("5 the checkpoint of step 4 could not be written"))
      << exit_record("limited");
  EXPECT_TRUE(fs::is_empty(file("limited/checkpoints")));
}

TEST_F(RunEnd, OnAFileSystemThatIsFullKeepsTheGoodCheckpoint) {
  Outcome outcome;
  const std::string run = file("tmpfs");
  if (!with_mounts("mkdir -p " + run + "; mount -t tmpfs -o size=12m none " + run + "; " + kTrain +
                       usual("tmpfs") + " --steps 3 --checkpoint-every 1" + "; echo code $?; cat " + run +
                       "/exit; ls " + run + "/checkpoints; " + kBin + "/cifar_mpi_eval --threads 1 --data " +
                       file("small.h5") + " " + run + "; mount -o remount,size=40m " + run + "; " + kTrain +
                       usual("tmpfs") + " --steps 3 --checkpoint-every 1" + "; echo code $?; cat " + run +
                       "/exit",
                   outcome)) {
    GTEST_SKIP() << "this machine does not allow mounting a tmpfs in a namespace";
  }
  EXPECT_EQ(count_lines_with(outcome.output, "code 5"), 1) << outcome.output;
  EXPECT_EQ(
      count_lines_with(outcome.output, "5 the checkpoint of step 3 could not be written (that of step 1"), 1)
      << outcome.output;
  EXPECT_EQ(count_lines_with(outcome.output, "No space left on device"), 4) << outcome.output;
  EXPECT_FALSE(contains(outcome.output, ".tmp\n"));
  EXPECT_EQ(count_lines_with(outcome.output, "precision @ 1"), 1) << outcome.output;
  EXPECT_EQ(count_lines_with(outcome.output, "resuming at step 1 of 3"), 1) << outcome.output;
  EXPECT_EQ(count_lines_with(outcome.output, "code 0"), 1) << outcome.output;
  EXPECT_EQ(count_lines_with(outcome.output, "0 done"), 1) << outcome.output;
}

TEST_F(RunEnd, WithReadOnlyCheckpointsComesAfterTheLastStep) {
  Outcome outcome;
  const std::string folder = file("read_only/checkpoints");
  if (!with_mounts("mkdir -p " + folder + "; mount --bind " + folder + " " + folder +
                       "; mount -o remount,ro,bind " + folder + "; " +
                       train("read_only", "--steps 3 --checkpoint-every 1") + "; echo code $?",
                   outcome)) {
    GTEST_SKIP() << "this machine does not allow mounting in a namespace";
  }
  EXPECT_EQ(count_lines_with(outcome.output, "code 5"), 1) << outcome.output;
  EXPECT_EQ(count_lines_with(outcome.output, "warning: the checkpoint of step"), 3) << outcome.output;
  EXPECT_EQ(count_lines_with(outcome.output, "Read-only file system"), 4) << outcome.output;
  EXPECT_TRUE(exit_record("read_only").starts_with("5 the checkpoint of step 3 could not be written"))
      << exit_record("read_only");
}

}  // namespace
}  // namespace cifar_mpi::test
