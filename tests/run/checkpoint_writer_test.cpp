#include "run/checkpoint_writer.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "support/temp_dir.hpp"

namespace {

bool threads_are_to_be_had = true;

}  // namespace

/// Stands before the C library's: fails as under a limit of processes when a test asks for it.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*work)(void*),
                              void* argument) noexcept {
  static auto* const real = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return threads_are_to_be_had ? real(thread, attributes, work, argument) : EAGAIN;
}

namespace cifar_mpi::run {
namespace {

namespace fs = std::filesystem;

Checkpoint checkpoint_at(std::uint64_t step) {
  Checkpoint checkpoint;
  checkpoint.state[optim::StateRole::weights] = checkpoint.state[optim::StateRole::average] = {
      {"conv1/weights", {2, 3}, "[in, out]", {1, 2, 3, 4, 5, 6}}};
  checkpoint.progress.step = step;
  checkpoint.progress.identity = {{"model", "tutorial"}};
  return checkpoint;
}

WriteReport write(CheckpointWriter& writer, std::uint64_t step) {
  writer.start(checkpoint_at(step));
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
  CheckpointWriter writer(dir.path(), {2, 4});
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

TEST(CheckpointWriter, WaitsForTheFileWhenItGoes) {
  const TempDir dir;
  for (std::uint64_t step = 1; step <= 20; ++step) {
    std::optional<CheckpointWriter> writer(std::in_place, dir.path(), Retention{5, 0});
    writer->start(checkpoint_at(step));
    writer.reset();
    EXPECT_EQ(read_checkpoint(checkpoint_path(dir.path(), step)).progress.step, step);
  }
}

TEST(CheckpointWriter, WritesTheSameWhereNoThreadIsToBeHad) {
  const TempDir dir;
  CheckpointWriter writer(dir.path(), {1, 0});
  threads_are_to_be_had = false;
  const WriteReport report = write(writer, 3);
  threads_are_to_be_had = true;
  EXPECT_EQ(report.problem, "");
  EXPECT_EQ(content_hash(read_checkpoint(report.path)), content_hash(checkpoint_at(3)));
}

TEST(CheckpointWriter, SaysWhatIsWrongAndCanTryAgain) {
  const TempDir dir;
  CheckpointWriter writer(dir / "run", {1, 0});
  EXPECT_NE(write(writer, 1).problem.find(dir / "run/checkpoints/step_000000001.h5"), std::string::npos);
  fs::create_directory(dir / "run");  // the folder of checkpoints is made again
  EXPECT_EQ(write(writer, 2).problem, "");
  fs::create_directory(checkpoint_path(dir / "run", 3));  // in the place of the file
  EXPECT_NE(write(writer, 3).problem, "");
  EXPECT_TRUE(fs::exists(checkpoint_path(dir / "run", 2))) << "retired by a file that was not written";
  EXPECT_EQ(fs::read_symlink(dir / "run/checkpoints/latest"), "step_000000002.h5");
  EXPECT_EQ(write(writer, 4).problem, "");
}

TEST(CheckpointWriter, DoesNotNeedTheLink) {
  const TempDir dir;
  fs::create_directories(dir / "checkpoints/latest/occupied");
  CheckpointWriter writer(dir.path(), {1, 0});
  const WriteReport report = write(writer, 1);
  EXPECT_EQ(report.problem, "");
  EXPECT_NE(report.remark.find("checkpoints/latest"), std::string::npos) << report.remark;
  EXPECT_EQ(read_checkpoint(report.path).progress.step, 1u);
  EXPECT_EQ(files_in(dir / "checkpoints"), 2u);
}

}  // namespace
}  // namespace cifar_mpi::run
