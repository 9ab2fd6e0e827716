#include "run/checkpoint_writer.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/temp_dir.hpp"

namespace {

bool threads_are_to_be_had = true;

}  // namespace

/// Replaces the C library's function: on request fails as under a limit on processes.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*work)(void*),
                              void* argument) noexcept {
  static auto* const real = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return threads_are_to_be_had ? real(thread, attributes, work, argument) : EAGAIN;
}

namespace cifar_mpi::run {
namespace {

namespace fs = std::filesystem;

Checkpoint checkpoint_at(std::uint64_t step, std::optional<double> test_accuracy = std::nullopt) {
  Checkpoint checkpoint;
  checkpoint.state[optim::StateRole::weights] = checkpoint.state[optim::StateRole::average] = {
      {"conv1/weights", {2, 3}, "[in, out]", {1, 2, 3, 4, 5, 6}}};
  checkpoint.progress.step = step;
  checkpoint.progress.identity = {{"model", "tutorial"}};
  checkpoint.provenance.test_accuracy = test_accuracy;
  return checkpoint;
}

WriteReport write(CheckpointWriter& writer, std::uint64_t step,
                  std::optional<double> test_accuracy = std::nullopt) {
  writer.start(checkpoint_at(step, test_accuracy));
  EXPECT_TRUE(writer.busy());
  WriteReport report = writer.finish();
  EXPECT_FALSE(writer.busy());
  EXPECT_FALSE(writer.done());
  EXPECT_EQ(report.step, step);
  return report;
}

std::size_t files_in(const std::string& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), {}));
}

TEST(CheckpointWriter, WritesSetsTheLinkAndRetires) {
  const TempDir dir;
  CheckpointWriter writer(dir.opened(), {2, 4});
  for (std::uint64_t step = 1; step <= 7; ++step) {
    const WriteReport report = write(writer, step);
    EXPECT_EQ(report.problem, "");
    EXPECT_EQ(report.remark, "");
    EXPECT_EQ(report.path, checkpoint_path(dir.path(), step));
    EXPECT_GT(report.seconds, 0.0);
    EXPECT_EQ(read_checkpoint(dir / "checkpoints/latest").progress.step, step);
  }
  EXPECT_EQ(files_in(dir / "checkpoints"), 4u);  // 4, 6, 7 and the link
  EXPECT_TRUE(fs::exists(checkpoint_path(dir.path(), 4)));
}

/// The steps of the files, then that of `best`, 0 if there is none.
std::vector<std::uint64_t> kept(const TempDir& dir) {
  std::vector<std::uint64_t> steps = list_checkpoints(dir.opened());
  const std::string link = dir / "checkpoints/best";
  steps.push_back(fs::is_symlink(link) ? read_checkpoint(link).progress.step : 0);
  return steps;
}
using Steps = std::vector<std::uint64_t>;

TEST(CheckpointWriter, KeepsTheBestAndOfEqualOnesTheEarliest) {
  const TempDir dir;
  const Retention one_and_best{1, 0, true};
  CheckpointWriter writer(dir.opened(), one_and_best);
  write(writer, 1);
  EXPECT_EQ(kept(dir), (Steps{1, 0}));
  write(writer, 2, 0.5);
  write(writer, 3, 0.7);
  write(writer, 4);
  EXPECT_EQ(kept(dir), (Steps{3, 4, 3}));
  write(writer, 5, 0.7);
  EXPECT_EQ(kept(dir), (Steps{3, 5, 3}));
  CheckpointWriter next(dir.opened(), one_and_best);  // of the next start
  write(next, 6, 0.6);
  EXPECT_EQ(kept(dir), (Steps{3, 6, 3}));
  write(next, 7, 0.8);
  EXPECT_EQ(kept(dir), (Steps{7, 7}));
  write(next, 8);
  EXPECT_EQ(kept(dir), (Steps{7, 8, 7}));
  write(next, 8, 0.9);  // its accuracy became known
  EXPECT_EQ(kept(dir), (Steps{8, 8}));
  EXPECT_EQ(next.best(8)->test_accuracy, 0.9);
}

TEST(CheckpointWriter, LeavesNoLinkToABestThatItDoesNotKeep) {
  const TempDir dir;
  CheckpointWriter keeps(dir.opened(), {1, 0, true}), forgets(dir.opened(), {1, 0, false});
  write(keeps, 1, 0.5);
  EXPECT_EQ(kept(dir), (Steps{1, 1}));
  write(forgets, 2, 0.4);
  EXPECT_EQ(kept(dir), (Steps{2, 0}));
}

TEST(CheckpointWriter, KeepsTheOneBeforeWhenTheBestCannotBeWritten) {
  const TempDir dir;
  CheckpointWriter writer(dir.opened(), {1, 0, true});
  write(writer, 1, 0.5);
  fs::create_directory(checkpoint_path(dir.path(), 2));
  EXPECT_NE(write(writer, 2, 0.9).problem, "");
  EXPECT_EQ(writer.best(2)->step, 1u);
  write(writer, 3, 0.8);
  EXPECT_EQ(writer.best(3)->step, 3u);
}

TEST(CheckpointWriter, WaitsForTheFileWhenItGoes) {
  const TempDir dir;
  for (std::uint64_t step = 1; step <= 20; ++step) {
    std::optional<CheckpointWriter> writer(std::in_place, dir.opened(), Retention{5, 0});
    writer->start(checkpoint_at(step));
    writer.reset();
    EXPECT_EQ(read_checkpoint(checkpoint_path(dir.path(), step)).progress.step, step);
  }
}

TEST(CheckpointWriter, WritesTheSameWhereNoThreadIsToBeHad) {
  const TempDir dir;
  CheckpointWriter writer(dir.opened(), {1, 0});
  threads_are_to_be_had = false;
  const WriteReport report = write(writer, 3);
  threads_are_to_be_had = true;
  EXPECT_EQ(report.problem, "");
  EXPECT_EQ(content_hash(read_checkpoint(report.path)), content_hash(checkpoint_at(3)));
}

TEST(CheckpointWriter, SaysWhatIsWrongAndCanTryAgain) {
  const TempDir dir;
  CheckpointWriter writer(dir.opened(), {1, 0});
  write_file(dir / "checkpoints", "in the place of the folder");
  EXPECT_NE(write(writer, 1).problem.find(dir / "checkpoints: it is not a folder"), std::string::npos);
  fs::remove(dir / "checkpoints");  // it is made again
  EXPECT_EQ(write(writer, 2).problem, "");
  fs::create_directory(checkpoint_path(dir.path(), 3));  // instead of the file
  EXPECT_NE(write(writer, 3).problem.find(checkpoint_path(dir.path(), 3)), std::string::npos);
  EXPECT_TRUE(fs::exists(checkpoint_path(dir.path(), 2))) << "retired by a file that was not written";
  EXPECT_EQ(fs::read_symlink(dir / "checkpoints/latest"), "step_000000002.h5");
  EXPECT_EQ(write(writer, 4).problem, "");
}

/// Names, targets and content of everything below a folder.
std::string state_of(const std::string& folder) {
  std::vector<std::string> lines;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const bool link = entry.is_symlink();
    lines.push_back(entry.path().string() + " " +
                    (link                      ? fs::read_symlink(entry.path()).string()
                     : entry.is_regular_file() ? read_file(entry.path().string())
                                               : ""));
  }
  std::sort(lines.begin(), lines.end());
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

/// During training, another user with write access replaces the run's own checkpoints by a link to those of
/// another run.
TEST(CheckpointWriter, IsNotLedToTheCheckpointsOfAnotherRun) {
  const TempDir dir, victim;
  CheckpointWriter mine(dir.opened(), {2, 0, true}), others(victim.opened(), {5, 0, true});
  for (std::uint64_t step = 1; step <= 3; ++step) {
    write(others, step, 0.5);
    write(mine, step + 10, 0.5);
  }
  const std::string before = state_of(victim.path());
  fs::rename(dir / "checkpoints", dir / "aside");
  fs::create_directory_symlink(victim / "checkpoints", dir / "checkpoints");
  const WriteReport report = write(mine, 14, 0.75);
  EXPECT_NE(report.problem.find("symbolic link"), std::string::npos) << report.problem;
  retire_checkpoints(dir.opened(), 100, {1, 0});
  EXPECT_THROW(link_latest(dir.opened(), 14), Error);
  EXPECT_THROW(link_best(dir.opened(), std::nullopt), Error);
  EXPECT_THROW(remove_temporary_files(dir.opened()), Error);
  EXPECT_THROW(mine.best(100), Error);
  EXPECT_NE(open_checkpoint(dir.opened(), 1).problem(), "");
  EXPECT_EQ(state_of(victim.path()), before);
  fs::remove(dir / "checkpoints");
  EXPECT_EQ(write(mine, 15, 0.75).problem, "");
  EXPECT_EQ(list_checkpoints(dir.opened()), Steps{15});
}

TEST(CheckpointWriter, GoesOnInTheDirectoryThatItOpened) {
  const TempDir dir;
  fs::create_directory(dir / "run");
  const Directory run(dir / "run");
  CheckpointWriter writer(run, {5, 0});
  EXPECT_EQ(write(writer, 1).problem, "");
  fs::rename(dir / "run", dir / "aside");
  fs::create_directories(dir / "run/checkpoints");
  EXPECT_EQ(write(writer, 2).problem, "");
  EXPECT_TRUE(fs::is_empty(dir / "run/checkpoints"));
  EXPECT_EQ(list_checkpoints(Directory(dir / "aside")), (Steps{1, 2}));
}

TEST(CheckpointWriter, DoesNotNeedTheLink) {
  const TempDir dir;
  fs::create_directories(dir / "checkpoints/latest/occupied");
  CheckpointWriter writer(dir.opened(), {1, 0});
  const WriteReport report = write(writer, 1);
  EXPECT_EQ(report.problem, "");
  EXPECT_NE(report.remark.find("checkpoints/latest"), std::string::npos) << report.remark;
  EXPECT_EQ(read_checkpoint(report.path).progress.step, 1u);
  EXPECT_EQ(files_in(dir / "checkpoints"), 2u);
}

}  // namespace
}  // namespace cifar_mpi::run
