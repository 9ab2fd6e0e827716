#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "app/command.hpp"
#include "support/contains.hpp"
#include "support/temp_dir.hpp"

/// The programs as users start them. CIFAR_MPI_BIN is the folder with the binaries, CIFAR_MPI_MPIRUN the
/// launcher.
namespace cifar_mpi::test {

inline const std::string kBin = CIFAR_MPI_BIN;
inline const std::string kMpirun = CIFAR_MPI_MPIRUN;
inline const std::string kTrain = kBin + "/cifar_mpi_train";
inline const std::string kEval = kBin + "/cifar_mpi_eval";
inline const std::string kPack = kBin + "/cifar_mpi_pack";
inline const std::string kReport = kBin + "/cifar_mpi_report";
inline const std::string kBench = kBin + "/cifar_mpi_bench";

/// The output of a program, which is expected to end with code 0.
inline std::string output_of(const Outcome& outcome, const char* file = __builtin_FILE(),
                             int line = __builtin_LINE()) {
  if (outcome.code != 0) ADD_FAILURE_AT(file, line) << "code " << outcome.code << ": " << outcome.output;
  return outcome.output;
}

/// One small dataset for all tests of the process.
class Programs : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    namespace fs = std::filesystem;
    folder_ = std::make_unique<TempDir>();
    // Packed once per build; every test, a separate process, takes a copy.
    const fs::path kept = kBin + "/small_for_tests.h5";
    std::error_code none;
    if (fs::last_write_time(kept, none) < fs::last_write_time(kPack) || none) {
      const Outcome packed = run_command(kPack + " --synthetic 64 --out " + file("small.h5"));
      ASSERT_EQ(packed.code, 0) << packed.output;
      const fs::path copied = kept.string() + "." + std::to_string(getpid());
      fs::copy_file(file("small.h5"), copied);
      fs::rename(copied, kept);
    } else {
      fs::copy_file(kept, file("small.h5"));
    }
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static std::string file(const std::string& name) { return *folder_ / name; }
  static std::string data() { return " --data " + file("small.h5"); }
  /// A run of a few small steps in the run directory `name`.
  static std::string usual(const std::string& name) {
    return data() + " --run-dir " + file(name) + " --batch-size 8 --steps 2 --threads 1";
  }
  /// The same with small parts of images, and so a small network and small checkpoints.
  static std::string small(const std::string& name) { return usual(name) + " --input-size 12"; }
  /// The cross-entropy of every step of a run, in the order of its metrics.jsonl.
  static std::vector<double> losses(const std::string& run) {
    const std::string text = read_file(file(run + "/metrics.jsonl")), key = "\"cross_entropy\":";
    std::vector<double> values;
    for (std::size_t at = text.find(key); at != std::string::npos; at = text.find(key, at + 1))
      values.push_back(std::stod(text.substr(at + key.size())));
    return values;
  }
  static Outcome mpirun(int ranks, const std::string& command) {
    return run_command(kMpirun + " -np " + std::to_string(ranks) + " " + command);
  }
  /// Exactly one sentence from the program, of the right kind.
  static void expect_refusal(const Outcome& outcome, int code, const std::string& part) {
    EXPECT_EQ(outcome.code, code) << outcome.output;
    static const std::regex kSentence("(^|\n)cifar_mpi_(train|eval|pack|bench|report): ");
    const std::sregex_iterator first(outcome.output.begin(), outcome.output.end(), kSentence);
    EXPECT_EQ(std::distance(first, std::sregex_iterator()), 1) << outcome.output;
    EXPECT_TRUE(contains(outcome.output, part));
    EXPECT_FALSE(contains(outcome.output, "internal error"));
  }

 private:
  static inline std::unique_ptr<TempDir> folder_;
};

}  // namespace cifar_mpi::test
