#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>

#include "cifar_mpi/base/text.hpp"
#include "fault/disturbed_run.hpp"

/// After any fault of a run's files or clocks, rerunning it gives the same result.
namespace cifar_mpi::test {
namespace {

namespace fs = std::filesystem;

std::string checkpoint(const std::string& run_dir, int step) {
  std::string name = std::to_string(step);
  name.insert(0, 9 - name.size(), '0');
  return run_dir + "/checkpoints/step_" + name + ".h5";
}

void flip_a_byte_in_the_middle(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto at = static_cast<std::streamoff>(fs::file_size(path) / 2);
  file.seekg(at);
  const int byte = file.get();
  file.seekp(at);
  file.put(static_cast<char>(byte ^ 0x10));
}

TEST_F(Fault, DamageToTheNewestCheckpointCostsStepsAndNothingElse) {
  using Damage = void (*)(const std::string& path);
  const std::map<std::string, Damage> damages{
      {"cut", [](const std::string& path) { fs::resize_file(path, fs::file_size(path) / 2); }},
      {"emptied", [](const std::string& path) { fs::resize_file(path, 0); }},
      {"flipped", flip_a_byte_in_the_middle},
      {"mistaken",
       [](const std::string& path) {
         fs::copy_file(fs::path(path).parent_path() / "step_000000014.h5", path,
                       fs::copy_options::overwrite_existing);
       }},
  };
  for (const auto& [run, damage] : damages) {
    SCOPED_TRACE(run);
    run_to_end(run, under_mpirun(with(small(run), {"--steps", "28"})));
    damage(checkpoint(file(run), 28));
    expect_same_end(run);
    const std::string log = text_of(file(run + ".log"));
    EXPECT_TRUE(contains(log, "skipping a damaged checkpoint: "));
    EXPECT_TRUE(contains(log, "resuming at step 21 of 60"));
    EXPECT_TRUE(contains(log, "the previous start logged step 28: this start repeats 7 steps\n"));
  }
}

TEST_F(Fault, CheckpointsThatCannotBeWrittenForATimeStopNothing) {
  Process job = start(under_mpirun(endless("homeless")), {}, file("homeless.log"));
  const auto ranks = ranks_in_training(job, "homeless");
  const std::string folder = file("homeless") + "/checkpoints", aside = file("aside");
  fs::rename(folder, aside);
  std::ofstream(folder) << "in the way";
  const auto warned = [&] { return job.output().find("could not be written") != std::string::npos; };
  EXPECT_TRUE(wait_until(100.0, warned)) << job.output();
  fs::remove(folder);
  fs::rename(aside, folder);
  const auto before = job.output().size();
  const auto writes = [&] { return job.output().find("checkpoint: ", before) != std::string::npos; };
  EXPECT_TRUE(wait_until(100.0, writes)) << job.output();
  kill(ranks.at(0), SIGKILL);
  EXPECT_GT(job.wait(kLaunchers), 0) << job.output();
  expect_same_end("homeless");
}

TEST_F(Fault, AFullDiskLosesNothingThatWasWrittenBefore) {
  fs::create_directory(file("full"));
  const auto script = [](const std::string& size, const std::string& action) {
    return "mount -t tmpfs -o size=" + size + " none " + file("full") + " || exit 77; " + action;
  };
  std::string train;
  for (const std::string& word : under_mpirun(small("full"))) train += word + ' ';
  const std::string end = checkpoint(file("full"), 60);
  const std::string say_end = "; cat " + file("full") + "/exit; ls " + file("full") + "/checkpoints; ";
  // First the disk holds one checkpoint, then all.
  Process job = start({"unshare", "-m", "sh", "-c",
                       script("4m", train + say_end + "mount -o remount,size=40m " + file("full") + "; " +
                                        train + say_end + "cp " + end + " " + file("full_end.h5"))},
                      {}, file("full.log"));
  const int code = job.wait(100.0);
  if (code == 77 || code == 1) GTEST_SKIP() << "this machine does not allow to mount a tmpfs in a namespace";
  const std::string log = job.output();
  const std::size_t full = log.find("5 the checkpoint of step 60 could not be written (that of step 7");
  EXPECT_NE(full, std::string::npos) << log;
  EXPECT_TRUE(contains(log, "No space left on device"));
  EXPECT_NE(log.find("\nlatest\nstep_000000007.h5\n", full), std::string::npos) << log;
  EXPECT_NE(log.find("resuming at step 7 of 60", full), std::string::npos) << log;
  EXPECT_NE(log.find("0 done", full), std::string::npos) << log;
  fs::create_directories(file("full_copy") + "/checkpoints");
  fs::rename(file("full_end.h5"), checkpoint(file("full_copy"), 60));
  expect_same_groups("full_copy", "undisturbed");
}

TEST_F(Fault, ASmallerKeepMakesRoomOnAFullDisk) {
  fs::create_directory(file("filled"));
  const auto train = [&](const std::string& keep) {
    std::string command;
    for (const std::string& word : under_mpirun(with(small("filled"), {"--steps", "14", "--keep", keep})))
      command += word + ' ';
    return command;
  };
  const std::string dir = file("filled");
  Process job = start({"unshare", "-m", "sh", "-c",
                       "mount -t tmpfs -o size=15m none " + dir + " || exit 77; " + train("5") + "; ls " +
                           dir + "/checkpoints; cat /dev/zero > " + dir + "/filler; " + train("1") + "; ls " +
                           dir + "/checkpoints; cat " + dir + "/exit; ls " + dir},
                      {}, file("filled.log"));
  const int code = job.wait(100.0);
  if (code == 77 || code == 1) GTEST_SKIP() << "this machine does not allow to mount a tmpfs in a namespace";
  const std::string log = job.output();
  const std::size_t filled = log.find("No space left on device");
  EXPECT_LT(log.find("latest\nstep_000000007.h5\nstep_000000014.h5\n"), filled) << log;
  ASSERT_NE(filled, std::string::npos) << log;
  EXPECT_NE(log.find("this run is finished: step 14", filled), std::string::npos) << log;
  EXPECT_NE(log.find("latest\nstep_000000014.h5\n0 done\n", filled), std::string::npos) << log;
  EXPECT_EQ(log.find("\nlock", filled), std::string::npos) << log;
}

TEST_F(Fault, ASecondRunInTheDirectoryIsRefusedAndTheFirstGoesOn) {
  // The pace changes no bit and takes time, so the first run gets its stop request during training.
  Process job = start(under_mpirun(paced(small("busy"), 50)), {}, file("busy.log"));
  const auto ranks = ranks_in_training(job, "busy", 3);
  Process second = start(under_mpirun(small("busy")), {}, file("second.log"));
  EXPECT_EQ(second.wait(100.0), 4) << second.output();
  EXPECT_TRUE(contains(second.output(), "is in use by"));
  const auto steps = [] { return text_of(file("busy") + "/metrics.jsonl").size(); };
  EXPECT_TRUE(wait_until(60.0, [&, until = steps()] { return steps() > until; })) << job.output();
  EXPECT_FALSE(has_step("busy", 60));
  kill(ranks.at(0), SIGTERM);
  EXPECT_EQ(job.wait(60.0), 75) << job.output();
  expect_same_end("busy");
}

TEST_F(Fault, ALockThatWasLeftOnAnotherHostIsTakenOverWhenItDoesNotChange) {
  Process job = start(under_mpirun(endless("left_locked")), {}, file("left_locked.log"));
  const auto ranks = ranks_in_training(job, "left_locked");
  for (const auto& [rank, pid] : ranks) kill(pid, SIGKILL);
  EXPECT_GT(job.wait(kLaunchers), 0) << job.output();
  const std::string lock = file("left_locked") + "/lock";
  std::string holder = text_of(lock);
  char host[256] = {};
  ASSERT_EQ(gethostname(host, sizeof host), 0);
  const std::size_t at = holder.find(host);
  ASSERT_NE(at, std::string::npos) << holder;
  holder.replace(at, std::string(host).size(), "elsewhere");
  std::ofstream(lock) << std::regex_replace(holder, std::regex("heartbeat_s=.*"), "heartbeat_s=0.1");
  expect_same_end("left_locked");
  EXPECT_TRUE(contains(text_of(file("left_locked.log")), "elsewhere: it gave no sign of life for 0.3 s"));
}

TEST_F(Fault, ARunOnFilesAsOfAClusterIsSavedResumedAndEvaluated) {
  const std::string run = file("network");
  const auto go = [&](const Words& words, const std::string& shift_s, int code) {
    const Environment network{
        {"LD_PRELOAD", CIFAR_MPI_NETWORK_FILES}, {"NETWORK_FILES", run}, {"NETWORK_FILES_SHIFT_S", shift_s}};
    Process job = start(under_mpirun(words), network, file("network.log"));
    EXPECT_EQ(job.wait(100.0), code) << job.output();
    for (const char* met : {"ESTALE", "coarse times", "no O_TMPFILE"})
      EXPECT_TRUE(contains(job.output(), concat("network files: ", met))) << met;
    // If other tests run at the same time, the run may also warn of the cores that they use.
    const std::string output = std::regex_replace(
        job.output(), std::regex("warning: since the start other processes have used[^\n]*\n"), "");
    EXPECT_FALSE(contains(output, "warning"));
    return job.output();
  };
  const std::string first = go(with(small("network"), {"--steps", "32"}), "-300", 0);
  EXPECT_TRUE(contains(first, "network files: no links"));
  // As after the kill of a start on another host.
  std::ofstream(run + "/lock") << "token=0a\nhost=elsewhere\npid=1\nheartbeat_s=0.1\n";
  const std::string second = go(small("network"), "300", 0);
  EXPECT_TRUE(contains(second, "waiting up to 0.3 s to see whether process 1 on elsewhere still runs"));
  EXPECT_TRUE(contains(second, "resuming at step 32 of 60"));
  expect_same_groups("network", "undisturbed");
  const std::string evaluated = go({kBin + "/cifar_mpi_eval", "--data", file("small.h5"), run}, "-300", 0);
  EXPECT_TRUE(contains(evaluated, "precision"));
  EXPECT_TRUE(fs::exists(run + "/evaluation.h5"));
}

TEST_F(Fault, AClockThatJumpsDisturbsNothing) {
  const Environment fault{{"LD_PRELOAD", CIFAR_MPI_FAULT_PRELOAD}, {"FAULT", "clock:0:10"}};
  Process job = start(under_mpirun(small("clock")), fault, file("clock.log"));
  EXPECT_EQ(job.wait(100.0), 0) << job.output();
  EXPECT_TRUE(contains(job.output(), "2001-09-09 ")) << "no jump";
  EXPECT_TRUE(contains(job.output(), ": step 60, loss"));
  EXPECT_FALSE(contains(job.output(), "taken over"));
  expect_same_groups("clock", "undisturbed");
}

}  // namespace
}  // namespace cifar_mpi::test
