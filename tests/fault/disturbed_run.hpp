#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "fault/job.hpp"
#include "support/contains.hpp"
#include "support/temp_dir.hpp"

/// A run that a test disturbs, and the checks of its end.
namespace cifar_mpi::test {

inline const std::string kBin = CIFAR_MPI_BIN;
inline const std::string kTrain = kBin + "/cifar_mpi_train";
inline constexpr int kRanks = 3;
inline constexpr double kTimeout = 5.0;
/// After the end of the ranks: mpirun's two pauses of a second, and ten times more on a slow or busy machine.
inline constexpr double kLaunchers = 40.0;

/// Small runs on a synthetic set, and the result of an undisturbed one.
class Fault : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempDir>();
    for (const auto& [name, value] : settings()) setenv(name.c_str(), value.c_str(), 1);
    unsetenv("CIFAR_MPI_DATA");
    pack("512", "8x8x3", "small.h5");
    take_undisturbed();
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static Environment settings() {
    return {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
            {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
            {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
            {"OMPI_MCA_hwloc_base_binding_policy", "none"},
            {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"},
            {"PRTE_MCA_hwloc_default_binding_policy", "none"},
            {"OMPI_MCA_pml", "ob1"},
            {"OMPI_MCA_btl", "^tcp,uct,ofi,openib"},
            {"HWLOC_PLUGINS_PATH", "/nonexistent"},
            {"OMPI_MCA_odls_base_sigkill_timeout", "1"},
            {"OMP_NUM_THREADS", "1"}};
  }
  static std::string file(const std::string& name) { return *folder_ / name; }
  static void pack(const std::string& images, const std::string& shape, const std::string& name) {
    Process packed =
        start({kBin + "/cifar_mpi_pack", "--synthetic", images, "--image", shape, "--out", file(name)}, {},
              file("pack.log"));
    ASSERT_EQ(packed.wait(60.0), 0) << packed.output();
  }

  using Words = std::vector<std::string>;
  /// At the usual rate, a run on so few images diverges sooner or later.
  static Words small(const std::string& run) {
    return {kTrain,
            "--data=" + file("small.h5"),
            "--run-dir=" + file(run),
            "--device=cpu",
            "--threads=1",
            "--input-size=8",
            "--batch-size=8",
            "--lr=0.01",
            "--steps=60",
            "--timeout=5",
            "--log-every=1",
            "--checkpoint-every=7"};
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

  /// Open MPI 5 gives the ranks half a second, whatever its options say.
  static bool mpirun_has_patience() {
    Process asked = start({CIFAR_MPI_MPIRUN, "--version"}, {}, file("version.log"));
    asked.wait(30.0);
    return asked.output().find(") 4.") != std::string::npos;
  }

  /// Restarts it until it reports its end.
  static void run_to_end(const std::string& run, const Words& words) {
    for (int attempt = 0; attempt < 3; ++attempt) {
      Process job = start(words, {}, file(run + ".log"));
      const int code = job.wait(100.0);
      if (code == 0) return;
      ASSERT_EQ(code, 75) << job.output();
    }
    FAIL() << "the run does not end";
  }
  /// An undisturbed run is made once per build and kept; every test, a separate process, compares with a
  /// copy.
  static void take_undisturbed() {
    namespace fs = std::filesystem;
    const std::string begin = kBin + "/undisturbed_by_faults-";
    std::string made_by = text_of(kTrain);
    for (const std::string& word : under_mpirun(small(""))) {
      if (word.find(folder_->path()) == std::string::npos) made_by += ' ' + word;
    }
    const std::string kept = begin + std::to_string(std::hash<std::string>()(made_by));
    if (fs::exists(kept)) {
      fs::copy(kept, file("undisturbed"), fs::copy_options::recursive);
      return;
    }
    run_to_end("undisturbed", under_mpirun(small("undisturbed")));
    ASSERT_FALSE(HasFatalFailure());
    for (const auto& entry : fs::directory_iterator(kBin)) {
      const std::string path = entry.path().string();
      if (path.starts_with(begin) && !path.starts_with(kept)) fs::remove_all(path);  // from an earlier build
    }
    const std::string copied = kept + "." + std::to_string(getpid());
    fs::copy(file("undisturbed"), copied, fs::copy_options::recursive);
    std::error_code another_was_faster;
    fs::rename(copied, kept, another_was_faster);
    if (another_was_faster) fs::remove_all(copied);
  }
  /// Finishes the run, whose result must equal that of the undisturbed one.
  static void expect_same_end(const std::string& run) {
    run_to_end(run, under_mpirun(small(run)));
    expect_same_groups(run, "undisturbed");
  }
  /// These groups of the last checkpoints are equal.
  static void expect_same_groups(const std::string& run, const std::string& reference,
                                 const Words& groups = {"/model", "/ema", "/optimizer", "/progress"}) {
    const std::string name = "/checkpoints/step_000000060.h5";
    for (const std::string& group : groups) {
      Process diff =
          start({"h5diff", file(reference + name), file(run + name), group, group}, {}, file(run + ".diff"));
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
      EXPECT_TRUE(wait_until(kLaunchers, [pid = pid] { return !runs(pid); })) << "rank " << rank;
  }
  static std::string exit_record(const std::string& run) { return text_of(file(run) + "/exit"); }
  /// `words` with ranks that sleep `ms` milliseconds in every call of oneDNN, about 15 times in a step of 8
  /// pixels: a test that is late finds the run in the step that it waits for, and waiting takes no core.
  static Words paced(const Words& words, int ms) {
    return with({"env", "LD_PRELOAD=" CIFAR_MPI_FAULT_PRELOAD, "FAULT_PACE_MS=" + std::to_string(ms)}, words);
  }
  /// Longer than any timeout, so that nothing ends before it is disturbed.
  static Words endless(const std::string& run) { return paced(with(small(run), {"--steps", "1000000"}), 3); }

 private:
  static inline std::unique_ptr<TempDir> folder_;
};

}  // namespace cifar_mpi::test
