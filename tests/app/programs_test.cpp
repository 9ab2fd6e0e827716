#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <regex>

#include "app/command.hpp"
#include "support/temp_dir.hpp"

/// The programs as a user starts them. CIFAR_MPI_BIN is the folder with the binaries, CIFAR_MPI_MPIRUN the
/// launcher.
namespace cifar_mpi::test {
namespace {

const std::string kBin = CIFAR_MPI_BIN;
const std::string kMpirun = CIFAR_MPI_MPIRUN;
const std::string kTrain = kBin + "/cifar_mpi_train";
const std::string kEval = kBin + "/cifar_mpi_eval";
const std::string kPack = kBin + "/cifar_mpi_pack";

/// One small dataset for all tests of the process.
class Programs : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempDir>();
    const Outcome packed = run_command(kPack + " --synthetic 64 --out " + *folder_ / "small.h5");
    ASSERT_EQ(packed.code, 0) << packed.output;
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static std::string file(const std::string& name) { return *folder_ / name; }
  static std::string data() { return " --data " + file("small.h5"); }
  /// A run of a few small steps in the run directory `name`.
  static std::string small(const std::string& name) {
    return data() + " --run-dir " + file(name) + " --batch-size 8 --steps 2 --threads 1";
  }
  static Outcome mpirun(int ranks, const std::string& command) {
    return run_command(kMpirun + " -np " + std::to_string(ranks) + " " + command);
  }
  /// One sentence from the program, of the right kind, and no more than one.
  static void expect_refusal(const Outcome& outcome, int code, const std::string& part) {
    EXPECT_EQ(outcome.code, code) << outcome.output;
    EXPECT_EQ(count_lines_with(outcome.output, "cifar_mpi_train: "), 1) << outcome.output;
    EXPECT_NE(outcome.output.find(part), std::string::npos) << outcome.output << "\nlacks: " << part;
    EXPECT_EQ(outcome.output.find("internal error"), std::string::npos) << outcome.output;
  }

 private:
  static inline std::unique_ptr<TempDir> folder_;
};

TEST_F(Programs, TrainEvaluateAndResume) {
  const Outcome trained = mpirun(2, kTrain + small("first") + " --log-every 1");
  ASSERT_EQ(trained.code, 0) << trained.output;
  EXPECT_TRUE(std::regex_search(
      trained.output,
      std::regex(
          R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}: step 2, loss = \d+\.\d\d \(\d+\.\d examples/sec; \d+\.\d{3} sec/batch\))")))
      << trained.output;
  EXPECT_NE(trained.output.find("learning rate: 0.1 from step 1"), std::string::npos) << trained.output;

  for (const char* weights : {"ema", "raw"}) {
    for (const int ranks : {1, 2}) {
      const Outcome evaluated = mpirun(ranks, kEval + " " + file("first") + data() + " --weights " + weights);
      EXPECT_EQ(evaluated.code, 0) << evaluated.output;
      EXPECT_TRUE(std::regex_search(evaluated.output, std::regex("precision @ 1 = [01]\\.\\d{4}\n")))
          << evaluated.output;
      EXPECT_EQ(count_lines_with(evaluated.output, "pattern9"), 1) << evaluated.output;
    }
  }
  const Outcome again = mpirun(2, kTrain + small("first"));
  EXPECT_EQ(again.code, 0);
  EXPECT_NE(again.output.find("this run is finished: step 2 of 2"), std::string::npos) << again.output;
}

TEST_F(Programs, TrainOnAnotherDatasetOfTheSchema) {
  ASSERT_EQ(run_command(kPack + " --synthetic 64 --image 28x28x1 --classes 7 --out " + file("gray.h5")).code,
            0);
  const Outcome trained = mpirun(2, kTrain + " --data " + file("gray.h5") + " --run-dir " + file("gray") +
                                        " --batch-size 8 --steps 2 --threads 1");
  EXPECT_EQ(trained.code, 0) << trained.output;
  const Outcome other = run_command(kEval + " " + file("gray") + data());
  EXPECT_EQ(other.code, 4) << other.output;
  EXPECT_NE(other.output.find("was trained on 28x28x1 images of 7 classes"), std::string::npos)
      << other.output;
}

TEST_F(Programs, PrintAConfigurationThatReadsBackAsItself) {
  const Outcome printed = run_command(kTrain + " --lr 0.25 --shuffle global --print-config");
  ASSERT_EQ(printed.code, 0) << printed.output;
  write_file(file("config.toml"), printed.output);
  const Outcome again = run_command(kTrain + " --config " + file("config.toml") + " --print-config");
  EXPECT_EQ(again.output, printed.output);
  EXPECT_NE(printed.output.find("lr=0.25"), std::string::npos) << printed.output;
  const Outcome bad = run_command("echo no_such_option=1 > " + file("bad.toml") + "; " + kTrain +
                                  " --config " + file("bad.toml"));
  EXPECT_EQ(bad.code, 2) << bad.output;
}

TEST_F(Programs, HaveARecipeThatSpellsOutTheDefaults) {
  const std::string recipe = std::string(CIFAR_MPI_SOURCE_ROOT) + "/jobs/recipes/tutorial.toml";
  const Outcome defaults = run_command(kTrain + " --print-config");
  const Outcome read = run_command(kTrain + " --config " + recipe + " --print-config");
  EXPECT_EQ(read.code, 0) << read.output;
  EXPECT_EQ(read.output, defaults.output);
}

TEST_F(Programs, AnswerWithoutMpi) {
  for (const std::string& program : {kTrain, kEval, kPack, kBin + "/cifar_mpi_bench"}) {
    EXPECT_EQ(run_command(program + " --help").code, 0);
    EXPECT_EQ(run_command(program + " --version").code, 0);
  }
  const Outcome build = run_command(kTrain + " --check-build");
  EXPECT_EQ(build.code, 0);
  for (const char* part : {"MPI", "cpu", "cuda", "ring", "tutorial"}) {
    EXPECT_NE(build.output.find(part), std::string::npos) << build.output;
  }
}

TEST_F(Programs, RefuseOptionsThatMakeNoSense) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"--no-such-option", "no-such-option"},
      {"--batch-size 0", "--batch-size"},
      {"--batch-size -4", "--batch-size"},
      {"--batch-size 99999999", "--batch-size"},
      {"--batch-size 1e99", "batch-size"},
      {"--batch-size eight", "batch-size"},
      {"--global-batch -8", "--global-batch"},
      {"--lr nan", "--lr"},
      {"--lr inf", "--lr"},
      {"--lr 0", "--lr"},
      {"--lr-decay-factor 2", "--lr-decay-factor"},
      {"--epochs 0", "--epochs"},
      {"--epochs nan", "--epochs"},
      {"--epochs-per-decay 0", "--epochs-per-decay"},
      {"--steps -1", "--steps"},
      {"--ema-decay 1", "--ema-decay"},
      {"--shuffle sideways", "shuffle"},
      {"--all-reduce pigeon", "all-reduce"},
      {"--model resnet", "model"},
      {"--precision fp8", "precision"},
      {"--keep 0", "--keep"},
      {"--keep-every -1", "--keep-every"},
      {"--checkpoint-every 0", "--checkpoint-every"},
      {"--threads -1", "--threads"},
      {"--seed -1", "--seed"},
      {"--run-dir= --print-config", "--run-dir"},
  };
  for (const auto& [option, part] : cases) {
    SCOPED_TRACE(option);
    expect_refusal(run_command(kTrain + data() + " --run-dir " + file("never") + " " + option), 2, part);
  }
  EXPECT_FALSE(std::filesystem::exists(file("never")));
}

TEST_F(Programs, RefuseBadDataOnAllRanksWithOneSentence) {
  const std::string train = kTrain + " --threads 1 --batch-size 8 --run-dir " + file("never") + " --data ";
  write_file(file("text.h5"), "this is not HDF5\n");
  ASSERT_EQ(run_command("head -c 100000 " + file("small.h5") + " > " + file("short.h5")).code, 0);
  ASSERT_EQ(run_command(kPack + " --synthetic 64 --image 16x16x3 --out " + file("tiny.h5")).code, 0);
  expect_refusal(mpirun(2, train + file("missing.h5")), 3, file("missing.h5"));
  expect_refusal(mpirun(2, train + file("text.h5")), 3, file("text.h5"));
  expect_refusal(mpirun(2, train + file("short.h5")), 3, file("short.h5"));
  expect_refusal(mpirun(2, train + file("tiny.h5")), 3, "smaller than the crop of 24x24");
  expect_refusal(mpirun(2, train + file("small.h5") + " --batch-size 64"), 3,
                 "fewer than one global batch of 128");
  expect_refusal(mpirun(2, train + file("small.h5") + " --global-batch 9"), 2,
                 "cannot be divided by 2 ranks");
  EXPECT_FALSE(std::filesystem::exists(file("never/metrics.jsonl")));
  EXPECT_TRUE(std::filesystem::is_empty(file("never/checkpoints")));
}

TEST_F(Programs, SayWhichRankFoundTheError) {
  // Only rank 1 is given a file that is not there. (One mpirun with two programs would do, but that of Open
  // MPI 5.0.7 crashes.)
  write_file(file("by_rank.sh"),
             "name=small.h5; [ \"$OMPI_COMM_WORLD_RANK\" = 0 ] || name=missing.h5\nexec " + kTrain +
                 " --threads 1 --batch-size 8 --run-dir " + file("never") + " --data " + file("$name"));
  expect_refusal(mpirun(2, "bash " + file("by_rank.sh")), 3, "rank 1");
}

TEST_F(Programs, RefuseWhereNothingCanBeWritten) {
  write_file(file("a_file"), "");
  expect_refusal(mpirun(2, kTrain + small("a_file/run")), 5, file("a_file/run"));
}

TEST_F(Programs, KeepTheLastCheckpointWhenTheDiskIsFull) {
  ASSERT_EQ(mpirun(1, kTrain + small("full")).code, 0);
  const std::string before = read_file(file("full/checkpoints/step_000000002.h5"));
  // A file-size limit stands in for a full disk: the write itself fails, as it does there. It is smaller than
  // a checkpoint (8.15 MiB). One rank that talks to nobody, because the limit also holds for MPI's shared
  // memory.
  const Outcome outcome =
      run_command("ulimit -f 8192; OMPI_MCA_btl=self " + kTrain + small("full") + " --steps 4");
  expect_refusal(outcome, 5, "step_000000004.h5");
  EXPECT_EQ(read_file(file("full/checkpoints/step_000000002.h5")), before);
  EXPECT_EQ(run_command("ls " + file("full/checkpoints")).output, "latest\nstep_000000002.h5\n");
  EXPECT_EQ(run_command(kEval + " " + file("full") + data()).code, 0);
}

TEST_F(Programs, RefuseCheckpointsThatDoNotFit) {
  ASSERT_EQ(mpirun(1, kTrain + small("mine")).code, 0);
  expect_refusal(mpirun(1, kTrain + small("mine") + " --seed 5"), 4, "--seed is 1, this one's is 5");
  expect_refusal(mpirun(1, kTrain + small("other") + " --resume " + file("nowhere.h5")), 4,
                 file("nowhere.h5"));
  expect_refusal(mpirun(1, kTrain + small("other") + " --resume " + file("small.h5")), 4, file("small.h5"));
  std::filesystem::create_directories(file("empty"));
  EXPECT_EQ(run_command(kEval + " " + file("empty") + data()).code, 4);
  EXPECT_EQ(run_command(kEval + " " + file("small.h5") + data()).code, 4);
}

TEST_F(Programs, EndADivergedRunWithItsOwnCode) {
  const Outcome outcome = mpirun(2, kTrain + small("wild") + " --steps 50 --lr 1e8");
  expect_refusal(outcome, 8, "diverged");
}

TEST_F(Programs, TrainToTheSameBitsOnAnyNumberOfRanksWhenAsked) {
  if (run_command("command -v h5diff").code != 0) GTEST_SKIP() << "h5diff is not installed";
  const std::string common = data() + " --shuffle global --global-batch 32 --steps 4 --threads 1 --run-dir ";
  const auto checkpoint = [](const std::string& run) {
    return file(run) + "/checkpoints/step_000000004.h5 ";
  };
  for (const int ranks : {1, 2, 4, 8}) {
    const std::string run = "reproducible_" + std::to_string(ranks);
    ASSERT_EQ(mpirun(ranks, kTrain + common + file(run) + " --reproducible").code, 0);
    for (const char* group : {"/model", "/ema", "/optimizer"}) {
      const Outcome diff =
          run_command("h5diff " + checkpoint("reproducible_1") + checkpoint(run) + group + " " + group);
      EXPECT_EQ(diff.code, 0) << ranks << " ranks, " << group << ": " << diff.output;
    }
  }
  // The comparison can fail: without the flag the sums are added in another order.
  for (const int ranks : {1, 2}) {
    ASSERT_EQ(mpirun(ranks, kTrain + common + file("plain_" + std::to_string(ranks))).code, 0);
  }
  EXPECT_EQ(run_command("h5diff " + checkpoint("plain_1") + checkpoint("plain_2") + "/model /model").code, 1);

  const std::string ask = kTrain + data() + " --reproducible --shuffle global --run-dir " + file("never");
  expect_refusal(mpirun(3, ask + " --global-batch 48"), 2, "power of two");
  expect_refusal(mpirun(2, ask + " --global-batch 24 --micro-shards 16"), 2, "does not come out even");
  expect_refusal(run_command(ask + " --micro-shards 6"), 2, "--micro-shards");
  expect_refusal(run_command(ask + " --all-reduce ring"), 2, "doubling");
  expect_refusal(run_command(ask + " --shuffle shard"), 2, "--shuffle global");
}

TEST_F(Programs, StopOnASignalWithACheckpointToGoOnFrom) {
  for (const char* signal : {"TERM", "INT", "USR1"}) {
    const std::string run = small(std::string("stopped_") + signal);
    // bash ignores SIGINT for what it starts in the background, and a program keeps that until it asks for
    // the signal.
    const Outcome outcome =
        run_command(kTrain + run + " --steps 100000 & child=$!; for i in $(seq 300); do sleep 0.1; [ ! -s " +
                    file(std::string("stopped_") + signal + "/metrics.jsonl") + " ] || break; done; kill -" +
                    signal + " $child; wait $child");
    expect_refusal(outcome, 75, "stopped on request at step");
    EXPECT_EQ(count_lines_with(outcome.output, "checkpoint: "), 1) << outcome.output;
  }
}

TEST_F(Programs, FollowARunDirectory) {
  ASSERT_EQ(mpirun(1, kTrain + small("watched")).code, 0);
  const Outcome outcome = run_command("timeout 10 " + kEval + " " + file("watched") + data() +
                                      " --watch --interval 0.1 --threads 1");
  EXPECT_EQ(outcome.code, 124) << outcome.output;  // it follows until it is ended
  EXPECT_EQ(count_lines_with(outcome.output, "precision @ 1 = "), 1) << outcome.output;
}

TEST_F(Programs, DetectSeparateWorldsOfOne) {
  expect_refusal(run_command("OMPI_COMM_WORLD_SIZE=4 " + kTrain + small("worlds")), 10,
                 "OMPI_COMM_WORLD_SIZE");
}

}  // namespace
}  // namespace cifar_mpi::test
