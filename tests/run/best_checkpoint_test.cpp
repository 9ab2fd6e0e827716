#include "run/best_checkpoint.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <optional>

#include "cifar_mpi/run/checkpoint.hpp"
#include "cifar_mpi/run/run_directory.hpp"
#include "support/errors.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi::run {
namespace {

namespace fs = std::filesystem;

class TestAccuraciesTest : public testing::Test {
 protected:
  TestAccuraciesTest() { make_folders(dir_.path()); }

  /// A checkpoint of `step` under the name of `named`, or of its own.
  std::string write(std::uint64_t step, std::optional<double> test_accuracy,
                    std::optional<std::uint64_t> named = std::nullopt, int views = 1) {
    Checkpoint checkpoint;
    checkpoint.state[optim::StateRole::weights] = checkpoint.state[optim::StateRole::average] = {
        {"conv1/weights", {100, 30}, "[in, out]", std::vector<float>(3000, 1.5f)}};
    checkpoint.progress.step = step;
    checkpoint.progress.identity = {{"model", "tutorial"}};
    checkpoint.provenance.test_accuracy = test_accuracy;
    checkpoint.provenance.views = views;
    const std::string path = checkpoint_path(dir_.path(), named.value_or(step));
    write_checkpoint(path, checkpoint);
    return path;
  }
  /// The step of the best; 0 when there is none.
  static std::uint64_t step_of(const std::optional<BestCheckpoint>& best) { return best ? best->step : 0; }
  std::uint64_t best(std::uint64_t newest) { return step_of(TestAccuracies(dir_.opened()).best(newest)); }

  TempDir dir_;
};

TEST_F(TestAccuraciesTest, TakeTheBestAndOfEqualOnesTheEarliest) {
  EXPECT_EQ(best(100), 0u);
  write(1, std::nullopt);
  EXPECT_EQ(best(100), 0u);
  write(2, 0.5);
  write(3, 0.75);
  write(4, 0.75);
  write(5, 0.25);
  EXPECT_EQ(best(100), 3u);
  EXPECT_EQ(TestAccuracies(dir_.opened()).best(100)->test_accuracy, 0.75);
  EXPECT_EQ(best(2), 2u);  // a checkpoint beyond the run's step does not belong to it
  write(6, 0.0);
  EXPECT_EQ(best(100), 3u);
  fs::remove(checkpoint_path(dir_.path(), 3));
  EXPECT_EQ(best(100), 4u);
}

TEST_F(TestAccuraciesTest, CompareNoneOfOtherViews) {
  write(1, 0.5);
  write(2, 0.75, std::nullopt, 6);
  write(3, 0.25);
  EXPECT_EQ(best(100), 1u);
  EXPECT_EQ(step_of(TestAccuracies(dir_.opened(), 6).best(100)), 2u);
  EXPECT_EQ(step_of(TestAccuracies(dir_.opened(), 2).best(100)), 0u);
  EXPECT_EQ(recorded_test_accuracy(checkpoint_path(dir_.path(), 2)), 0.75);
  write(4, 0.625, std::nullopt, 0);  // as in older files, where it is unknown
  EXPECT_EQ(best(100), 4u);
}

/// Else a resume with other --views would remove the best checkpoint of a run.
TEST_F(TestAccuraciesTest, KeepTheBestOfOtherViewsUntilThereIsOneOfTheirs) {
  write(1, 0.75);
  write(2, 0.5);
  const auto kept = [&] { return step_of(TestAccuracies(dir_.opened(), 6).kept(100)); };
  EXPECT_EQ(kept(), 1u);
  EXPECT_EQ(step_of(TestAccuracies(dir_.opened(), 6).best(100)), 0u);
  write(3, 0.25, std::nullopt, 6);
  EXPECT_EQ(kept(), 3u);
}

TEST_F(TestAccuraciesTest, BelieveNoFileThatIsDamagedMisnamedOrMakesNoSense) {
  write(1, 0.5);
  const std::string damaged = write(2, 0.75);
  std::string bytes = read_file(damaged);
  bytes[bytes.find(std::string("\0\0\xc0\x3f\0\0\xc0\x3f", 8)) + 2] ^= 1;  // one of its weights
  write_file(damaged, bytes);
  ASSERT_EQ(recorded_test_accuracy(damaged), 0.75);
  write(3, 0.8, 4);
  write(5, 1.5);
  write(6, -1.0);
  write(7, std::numeric_limits<double>::quiet_NaN());
  write_file(checkpoint_path(dir_.path(), 8), "no HDF5");
  fs::create_directory(checkpoint_path(dir_.path(), 9));
  EXPECT_EQ(best(100), 1u);
}

TEST_F(TestAccuraciesTest, KnowWhatWasWrittenSince) {
  TestAccuracies accuracies(dir_.opened());
  write(1, 0.5);
  write_file(checkpoint_path(dir_.path(), 2), "torn");
  EXPECT_EQ(step_of(accuracies.best(2)), 1u);
  write(2, 0.75);
  accuracies.note_written(2, 0.75);
  EXPECT_EQ(step_of(accuracies.best(2)), 2u);
  accuracies.note_written(3, 0.875);  // but it was removed from outside
  EXPECT_EQ(step_of(accuracies.best(3)), 2u);
}

TEST_F(TestAccuraciesTest, SayThatTheyCannotLook) {
  fs::remove(dir_ / "checkpoints");
  fs::create_symlink("checkpoints", dir_ / "checkpoints");  // unreadable for root too
  expect_error(ErrorKind::io, {dir_ / "checkpoints"}, [&] { best(1); });
}

}  // namespace
}  // namespace cifar_mpi::run
