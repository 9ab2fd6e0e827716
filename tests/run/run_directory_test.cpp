#include "cifar_mpi/run/run_directory.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "support/errors.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi::run {
namespace {

namespace fs = std::filesystem;
using Steps = std::vector<std::uint64_t>;

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

TEST(MakeFolders, FollowsNoLinkToTheCheckpointsOfOthers) {
  const TempDir dir;
  make_folders(dir / "run");
  EXPECT_TRUE(std::filesystem::is_directory(dir / "run/checkpoints"));
  make_folders(dir / "run");
  std::filesystem::create_directory(dir / "other");
  std::filesystem::create_directory_symlink("../run/checkpoints", dir / "other/checkpoints");
  expect_error(ErrorKind::io, {dir / "other/checkpoints", "symbolic link", "--run-dir"},
               [&] { make_folders(dir / "other"); });
}

TEST(ListCheckpoints, GivesTheOldestFirstAndNothingElse) {
  const TempDir dir;
  EXPECT_TRUE(list_checkpoints(dir.opened()).empty());
  EXPECT_EQ(checkpoint_path("run", 1000), "run/checkpoints/step_000001000.h5");
  make_files(dir.path(), {2000, 1000, 12'345'678'901u, 0, 999'999'999});
  for (const std::string& other : kOthers) write_file(dir / ("checkpoints/" + other), "content");
  EXPECT_EQ(list_checkpoints(dir.opened()), (Steps{0, 1000, 2000, 999'999'999, 12'345'678'901u}));
}

TEST(ListCheckpoints, SaysThatItCannotLook) {
  const TempDir dir;
  fs::create_symlink("checkpoints", dir / "checkpoints");  // unreadable for root too
  expect_error(ErrorKind::io, {dir / "checkpoints: "}, [&] { list_checkpoints(dir.opened()); });
  EXPECT_NO_THROW(retire_checkpoints(dir.opened(), 100, {5, 0}));
  EXPECT_THROW(list_checkpoints(Directory()), Error) << "it cannot know whether there are any";
}

TEST(RetireCheckpoints, KeepsTheNewestAndTouchesNothingElse) {
  const TempDir dir;
  make_files(dir.path(), {5, 10, 100, 20, 1});
  for (const std::string& other : kOthers) write_file(dir / ("checkpoints/" + other), "content");
  retire_checkpoints(dir.opened(), 100, {5, 0});
  EXPECT_EQ(list_checkpoints(dir.opened()), (Steps{1, 5, 10, 20, 100}));
  retire_checkpoints(dir.opened(), 100, {2, 0});
  EXPECT_EQ(list_checkpoints(dir.opened()), (Steps{20, 100}));
  retire_checkpoints(dir.opened(), 100, {1, 0});
  EXPECT_EQ(list_checkpoints(dir.opened()), (Steps{100}));
  for (const std::string& other : kOthers) EXPECT_TRUE(fs::exists(dir / ("checkpoints/" + other))) << other;
  fs::remove_all(dir / "checkpoints");
  EXPECT_NO_THROW(retire_checkpoints(dir.opened(), 100, {1, 0}));
}

TEST(RetireCheckpoints, KeepsOneEveryNowAndThen) {
  const TempDir dir;
  make_files(dir.path(), {10, 20, 30, 40, 50, 60, 70});
  retire_checkpoints(dir.opened(), 70, {2, 30});
  EXPECT_EQ(list_checkpoints(dir.opened()), (Steps{30, 60, 70}));
}

TEST(RetireCheckpoints, KeepsTheBestBesidesTheNewest) {
  const TempDir dir;
  make_files(dir.path(), {10, 20, 30, 40, 50});
  retire_checkpoints(dir.opened(), 50, {2, 0}, 20);
  EXPECT_EQ(list_checkpoints(dir.opened()), (Steps{20, 40, 50}));
  retire_checkpoints(dir.opened(), 50, {2, 0}, 50);
  EXPECT_EQ(list_checkpoints(dir.opened()), (Steps{40, 50}));
}

TEST(RetireCheckpoints, NeitherCountsNorRemovesWhatLiesBeyondTheNewest) {
  const TempDir dir;
  make_files(dir.path(), {10, 20, 500, 600});
  retire_checkpoints(dir.opened(), 20, {1, 0});
  EXPECT_EQ(list_checkpoints(dir.opened()), (Steps{20, 500, 600}));
}

/// Any user with write access can make `latest` a link to anything.
TEST(OpenCheckpoint, TakesTheNewestOfARunDirectory) {
  const TempDir dir;
  make_files(dir / "run", {1000, 2000});
  EXPECT_EQ(open_checkpoint(dir / "run").path(), checkpoint_path(dir / "run", 2000));
  EXPECT_EQ(open_checkpoint(dir / "run").problem(), "");
  fs::create_directory(dir / "empty");
  const InputFile none = open_checkpoint(dir / "empty");
  EXPECT_EQ(none.path(), dir / "empty");
  EXPECT_EQ(none.problem(), "it is a folder without checkpoints/step_*.h5");
}

TEST(OpenCheckpoint, TakesLatestOnlyForACheckpointInItsOwnFolder) {
  const TempDir dir;
  make_files(dir.path(), {1});
  const std::string latest = dir / "checkpoints/latest";
  link_latest(dir.opened(), 1);
  EXPECT_EQ(open_checkpoint(latest).problem(), "");
  EXPECT_EQ(open_checkpoint(latest).path(), checkpoint_path(dir.path(), 1));
  write_file(dir / "private.h5", "content");
  fs::create_directories(dir / "other");
  fs::create_symlink("../private.h5", dir / "other/step_000000002.h5");
  for (const char* target :
       {"../private.h5", "step_1.h5", "/etc/passwd", "../checkpoints/step_000000001.h5"}) {
    fs::remove(latest);
    fs::create_symlink(target, latest);
    EXPECT_TRUE(contains(open_checkpoint(latest).problem(), "not to a checkpoint next to it")) << target;
  }
  fs::create_symlink("step_000000002.h5", dir / "other/best");
  EXPECT_TRUE(contains(open_checkpoint(dir / "other/best").problem(), "symbolic link"));
  EXPECT_EQ(open_checkpoint(dir / "other/step_000000002.h5").problem(), "") << "the user typed it";
}

TEST(LinkLatest, IsRelativeAndReplacesTheOneBefore) {
  const TempDir dir;
  make_files(dir.path(), {1, 2});
  link_latest(dir.opened(), 1);
  link_latest(dir.opened(), 2);
  const std::string link = dir / "checkpoints/latest";
  EXPECT_EQ(fs::read_symlink(link), "step_000000002.h5");
  EXPECT_TRUE(fs::is_regular_file(link));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir / "checkpoints"), {}), 3);
  fs::remove_all(dir / "checkpoints");
  expect_error(ErrorKind::io, {dir / "checkpoints"}, [&] { link_latest(dir.opened(), 1); });
}

TEST(LinkBest, IsSetAndRemovedAndFollowsNothing) {
  const TempDir dir;
  make_files(dir.path(), {1, 2});
  const std::string link = dir / "checkpoints/best";
  link_best(dir.opened(), std::nullopt);
  link_best(dir.opened(), 1);
  EXPECT_EQ(fs::read_symlink(link), "step_000000001.h5");
  link_best(dir.opened(), 2);
  link_best(dir.opened(), 2);
  EXPECT_EQ(fs::read_symlink(link), "step_000000002.h5");
  link_best(dir.opened(), std::nullopt);
  EXPECT_FALSE(fs::is_symlink(link));
  EXPECT_EQ(list_checkpoints(dir.opened()), (Steps{1, 2}));
  // Another user's link to a file outside.
  write_file(dir / "precious", "precious");
  for (const auto step : {std::optional<std::uint64_t>(1), std::optional<std::uint64_t>()}) {
    fs::create_symlink("../precious", link);
    link_best(dir.opened(), step);
    EXPECT_EQ(read_file(dir / "precious"), "precious");
    EXPECT_EQ(fs::is_symlink(link), step.has_value());
    fs::remove(link);
  }
  write_file(link, "a file of the user's");
  link_best(dir.opened(), std::nullopt);
  EXPECT_EQ(read_file(link), "a file of the user's");
}

TEST(RemoveTemporaryFiles, TakesOnlyThoseOfARun) {
  const TempDir dir;
  make_files(dir.path(), {1});
  link_latest(dir.opened(), 1);
  const std::vector<std::string> ours{"step_000000002.h5.123-0.tmp", "latest.9-11.tmp", "best.9-0.tmp"};
  std::vector<std::string> others = kOthers;
  for (const char* name : {"step_2.h5.123-0.tmp", "step_000000002.h5.123.tmp", "notes.123-0.tmp", "a.tmp",
                           ".tmp", "step_000000002.h5.1a-0.tmp", "step_000000002.h5.123-0.tmp.gz"}) {
    others.emplace_back(name);
  }
  for (const std::string& name : ours) write_file(dir / ("checkpoints/" + name), "content");
  for (const std::string& name : others) write_file(dir / ("checkpoints/" + name), "content");
  const std::vector<std::string> beside{"timeline.h5.7-0.tmp", "summaries.h5.7-0.tmp",
                                        "evaluation.h5.7-0.tmp", "config.toml.7-0.tmp",
                                        "metrics.jsonl.7-0.tmp"};
  const std::vector<std::string> not_ours{"lock.7-0.tmp", "report.html.7-0.tmp", "timeline.h5",
                                          "timeline.h5.tmp"};
  for (const std::string& name : beside) write_file(dir / name, "content");
  for (const std::string& name : not_ours) write_file(dir / name, "content");
  remove_temporary_files(dir.opened());
  for (const std::string& name : beside) EXPECT_FALSE(fs::exists(dir / name)) << name;
  for (const std::string& name : not_ours) EXPECT_TRUE(fs::exists(dir / name)) << name;
  for (const std::string& name : ours) EXPECT_FALSE(fs::exists(dir / ("checkpoints/" + name))) << name;
  for (const std::string& name : others) EXPECT_TRUE(fs::exists(dir / ("checkpoints/" + name))) << name;
  EXPECT_TRUE(fs::exists(checkpoint_path(dir.path(), 1)));
  EXPECT_TRUE(fs::is_symlink(dir / "checkpoints/latest"));
}

TEST(RecordExit, KeepsTheFirstSentence) {
  const TempDir dir;
  record_exit(dir.opened(), 6, "rank 1: no\nsuch device");
  record_exit(dir.opened(), 7, "a peer was lost");
  EXPECT_EQ(read_file(dir / "exit"), "6 rank 1: no\\nsuch device\n");
  EXPECT_EQ(dir.files(), 1u);
  EXPECT_NO_THROW(record_exit(Directory(), 1, "nowhere"));
}

}  // namespace
}  // namespace cifar_mpi::run
