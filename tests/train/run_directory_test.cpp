#include "cifar_mpi/train/run_directory.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "support/mpi_world.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi::train {
namespace {

namespace fs = std::filesystem;
using Steps = std::vector<std::uint64_t>;

Steps steps_in(const std::string& run_dir) {
  Steps steps;
  for (const CheckpointFile& file : list_checkpoints(run_dir)) {
    EXPECT_TRUE(fs::exists(file.path)) << file.path;
    steps.push_back(file.step);
  }
  return steps;
}

void make_files(const std::string& run_dir, const Steps& steps) {
  fs::create_directories(run_dir + "/checkpoints");
  for (const std::uint64_t step : steps) write_file(checkpoint_path(run_dir, step), "content");
}

/// Names that look like those of checkpoints and are not.
const std::vector<std::string> kOthers{"step_000003000.h5.tmp",
                                       "step_000003000.h5.Ab12Cd",
                                       ".step_000003000.h5.tmp",
                                       "step_000003000",
                                       "step_.h5",
                                       "latest.h5",
                                       "xstep_000003000.h5",
                                       "step_3000.h5",
                                       "step_0000000005.h5",
                                       "step_+00000005.h5",
                                       "step_-00000005.h5",
                                       "step_000000005.h5 ",
                                       "step_99999999999999999999999.h5"};

TEST(ListCheckpoints, GivesTheOldestFirstAndNothingElse) {
  const TempDir dir;
  EXPECT_TRUE(steps_in(dir.path()).empty());
  EXPECT_EQ(checkpoint_path("run", 1000), "run/checkpoints/step_000001000.h5");
  make_files(dir.path(), {2000, 1000, 12'345'678'901u, 0, 999'999'999});
  for (const std::string& other : kOthers) write_file(dir / ("checkpoints/" + other), "content");
  EXPECT_EQ(steps_in(dir.path()), (Steps{0, 1000, 2000, 999'999'999, 12'345'678'901u}));
}

TEST(ListCheckpoints, SaysThatItCannotLook) {
  const TempDir dir;
  fs::create_symlink("checkpoints", dir / "checkpoints");  // unreadable for root too
  try {
    list_checkpoints(dir.path());
    ADD_FAILURE() << "it takes the folder for an empty one";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::io);
    EXPECT_NE(std::string(error.what()).find(dir / "checkpoints: "), std::string::npos) << error.what();
  }
  EXPECT_NO_THROW(retire_checkpoints(dir.path(), 100, {5, 0}));
}

TEST(RetireCheckpoints, KeepsTheNewestAndTouchesNothingElse) {
  const TempDir dir;
  make_files(dir.path(), {5, 10, 100, 20, 1});
  for (const std::string& other : kOthers) write_file(dir / ("checkpoints/" + other), "content");
  retire_checkpoints(dir.path(), 100, {5, 0});
  EXPECT_EQ(steps_in(dir.path()), (Steps{1, 5, 10, 20, 100}));
  retire_checkpoints(dir.path(), 100, {2, 0});
  EXPECT_EQ(steps_in(dir.path()), (Steps{20, 100}));
  retire_checkpoints(dir.path(), 100, {1, 0});
  EXPECT_EQ(steps_in(dir.path()), (Steps{100}));
  for (const std::string& other : kOthers) EXPECT_TRUE(fs::exists(dir / ("checkpoints/" + other))) << other;
  EXPECT_NO_THROW(retire_checkpoints(dir / "none", 100, {1, 0}));
}

TEST(RetireCheckpoints, KeepsOneEveryNowAndThen) {
  const TempDir dir;
  make_files(dir.path(), {10, 20, 30, 40, 50, 60, 70});
  retire_checkpoints(dir.path(), 70, {2, 30});
  EXPECT_EQ(steps_in(dir.path()), (Steps{30, 60, 70}));
}

TEST(RetireCheckpoints, NeitherCountsNorRemovesWhatLiesBeyondTheNewest) {
  const TempDir dir;
  make_files(dir.path(), {10, 20, 500, 600});
  retire_checkpoints(dir.path(), 20, {1, 0});
  EXPECT_EQ(steps_in(dir.path()), (Steps{20, 500, 600}));
}

TEST(LinkLatest, IsRelativeAndReplacesTheOneBefore) {
  const TempDir dir;
  make_files(dir.path(), {1, 2});
  link_latest(dir.path(), 1);
  link_latest(dir.path(), 2);
  const std::string link = dir / "checkpoints/latest";
  EXPECT_EQ(fs::read_symlink(link), "step_000000002.h5");
  EXPECT_TRUE(fs::is_regular_file(link));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir / "checkpoints"), {}), 3);
  expect_error(ErrorKind::io, {"none/checkpoints/latest"}, [&] { link_latest(dir / "none", 1); });
}

TEST(RemoveTemporaryFiles, TakesOnlyThoseOfCheckpoints) {
  const TempDir dir;
  make_files(dir.path(), {1});
  link_latest(dir.path(), 1);
  const std::vector<std::string> ours{"step_000000002.h5.123-0.tmp", "latest.9-11.tmp"};
  std::vector<std::string> others = kOthers;
  for (const char* name : {"step_2.h5.123-0.tmp", "step_000000002.h5.123.tmp", "notes.123-0.tmp", "a.tmp",
                           ".tmp", "step_000000002.h5.1a-0.tmp", "step_000000002.h5.123-0.tmp.gz"}) {
    others.emplace_back(name);
  }
  for (const std::string& name : ours) write_file(dir / ("checkpoints/" + name), "content");
  for (const std::string& name : others) write_file(dir / ("checkpoints/" + name), "content");
  remove_temporary_files(dir.path());
  for (const std::string& name : ours) EXPECT_FALSE(fs::exists(dir / ("checkpoints/" + name))) << name;
  for (const std::string& name : others) EXPECT_TRUE(fs::exists(dir / ("checkpoints/" + name))) << name;
  EXPECT_TRUE(fs::exists(checkpoint_path(dir.path(), 1)));
  EXPECT_TRUE(fs::is_symlink(dir / "checkpoints/latest"));
}

TEST(RecordExit, KeepsTheFirstSentence) {
  const TempDir dir;
  record_exit(dir.path(), 6, "rank 1: no\nsuch device");
  record_exit(dir.path(), 7, "a peer was lost");
  EXPECT_EQ(read_file(dir / "exit"), "6 rank 1: no such device\n");
  EXPECT_EQ(dir.files(), 1u);
  EXPECT_NO_THROW(record_exit(dir / "none", 1, "nowhere"));
}

/// A folder that all ranks see.
class RunDirectoryTest : public testing::Test {
 protected:
  RunDirectoryTest() {
    if (world().rank() == 0) path_ = folder_.path();
    world().broadcast(path_);
  }
  ~RunDirectoryTest() override { world().barrier(); }
  static const comm::World& world() { return test::test_world(); }
  /// The record, once all ranks have passed here.
  std::string record() const {
    world().barrier();
    const std::string text = read_file(path_ + "/run/exit");
    world().barrier();
    return text;
  }
  std::string run_dir() const { return path_ + "/run"; }

 private:
  TempDir folder_;
  std::string path_;
};

TEST_F(RunDirectoryTest, RecordsEachKindOfEnd) {
  const int last = world().size() - 1;
  {
    const RunDirectory directory(run_dir(), world());
    EXPECT_TRUE(fs::exists(run_dir() + "/lock"));
    directory.record_end_of([&] {
      EXPECT_FALSE(fs::exists(run_dir() + "/exit"));
      world().barrier();
    });
    EXPECT_EQ(record(), "0 done\n");
  }
  world().barrier();
  EXPECT_FALSE(fs::exists(run_dir() + "/lock"));
  world().barrier();
  {
    const RunDirectory directory(run_dir(), world());
    const auto fail = [&] {
      world().together([&] {
        if (world().rank() == last) throw Error(ErrorKind::data, "no data");
      });
    };
    EXPECT_THROW(directory.record_end_of(fail), comm::AgreedError);
    EXPECT_TRUE(record().starts_with("3 no data")) << record();
  }
  world().barrier();
  {
    const RunDirectory directory(run_dir(), world());
    const auto fail = [&] {
      if (world().rank() == last) throw Error(ErrorKind::device, "no device");
      world().barrier();
    };
    // Here the others are not ended, so they wait for the rank that failed.
    if (world().rank() == last) {
      EXPECT_THROW(directory.record_end_of(fail), Error);
      EXPECT_EQ(read_file(run_dir() + "/exit"), "6 rank " + std::to_string(last) + ": no device\n");
      world().barrier();
    } else {
      directory.record_end_of(fail);
    }
    EXPECT_EQ(record(), "6 rank " + std::to_string(last) + ": no device\n");
  }
  world().barrier();
  {
    const RunDirectory directory(run_dir(), world());
    const auto fail = [&] {
      if (world().rank() == 0) throw std::logic_error("a bug");
    };
    if (world().rank() == 0) {
      EXPECT_THROW(directory.record_end_of(fail), std::logic_error);
    } else {
      directory.record_end_of(fail);
    }
    EXPECT_EQ(record(), "1 rank 0: internal error: a bug\n");
  }
}

TEST_F(RunDirectoryTest, RefusesASecondRunAndTouchesNothing) {
  const RunDirectory first(run_dir(), world());
  if (world().rank() == 0) {
    record_exit(run_dir(), 75, "of the first run");
    write_file(run_dir() + "/checkpoints/step_000000001.h5.1-0.tmp", "being written");
  }
  world().barrier();
  const std::string lock = read_file(run_dir() + "/lock");
  try {
    const RunDirectory second(run_dir(), world());
    ADD_FAILURE() << "two runs in one directory";
  } catch (const comm::AgreedError& error) {
    EXPECT_EQ(error.kind(), ErrorKind::checkpoint);
    const std::string text = error.what();
    EXPECT_NE(text.find(run_dir() + " is in use by process "), std::string::npos) << text;
  }
  world().barrier();
  EXPECT_EQ(read_file(run_dir() + "/lock"), lock);
  EXPECT_EQ(record(), "75 of the first run\n");
  EXPECT_TRUE(fs::exists(run_dir() + "/checkpoints/step_000000001.h5.1-0.tmp"));
}

TEST_F(RunDirectoryTest, SaysWhereItCannotBeMade) {
  if (world().rank() == 0) write_file(run_dir(), "a file");
  world().barrier();
  try {
    const RunDirectory directory(run_dir(), world());
    ADD_FAILURE() << "expected an error";
  } catch (const comm::AgreedError& error) {
    EXPECT_EQ(error.kind(), ErrorKind::io);
    EXPECT_NE(std::string(error.what()).find(run_dir()), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace cifar_mpi::train
