#include "cifar_mpi/run/run_directory.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "support/mpi_world.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi::run {
namespace {

namespace fs = std::filesystem;

/// A folder that all ranks see.
class RunDirectoryTest : public testing::Test {
 protected:
  RunDirectoryTest() {
    if (world().rank() == 0) path_ = folder_.path();
    world().broadcast(path_);
  }
  ~RunDirectoryTest() override { world().barrier(); }
  static const comm::World& world() { return test::test_world(); }
  /// The record, after all ranks reach this point.
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
    RunDirectory directory(run_dir(), world());
    directory.begin();
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
    RunDirectory directory(run_dir(), world());
    directory.begin();
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
    RunDirectory directory(run_dir(), world());
    directory.begin();
    const auto fail = [&] {
      if (world().rank() == last) throw Error(ErrorKind::device, "no device");
      world().barrier();
    };
    // Here the others are not ended, so they wait for the failed rank.
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
    RunDirectory directory(run_dir(), world());
    directory.begin();
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

/// Rank 0 may still be busy when another rank begins, and fails.
TEST_F(RunDirectoryTest, KeepsTheRecordOfARankThatFailsAtOnce) {
  const int last = world().size() - 1;
  for (const bool rank_fails_first : {true, false}) {
    {
      RunDirectory finished(run_dir(), world());
      finished.begin();
      finished.record_end_of([] {});
      EXPECT_EQ(record(), "0 done\n");
    }
    world().barrier();
    RunDirectory directory(run_dir(), world());
    if ((world().rank() == last) != rank_fails_first)
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    directory.begin();
    if (world().rank() == last) {
      EXPECT_THROW(directory.record_end_of([] { throw Error(ErrorKind::device, "no device"); }), Error);
    }
    EXPECT_EQ(record(), concat("6 rank ", last, ": no device\n"));
  }
}

/// A start that fails before `begin` leaves the record of a finished run only if the user's input is at fault.
TEST_F(RunDirectoryTest, KeepsTheRecordOfAFinishedRunWhenAStartIsRefused) {
  const int last = world().size() - 1;
  const auto fail_on_last = [&](ErrorKind kind) {
    world().together([&] {
      if (world().rank() == last) throw Error(kind, "the reason");
    });
  };
  const std::vector<std::pair<ErrorKind, std::string>> cases{
      {ErrorKind::usage, "0 done\n"},      {ErrorKind::data, "0 done\n"},
      {ErrorKind::checkpoint, "0 done\n"}, {ErrorKind::io, "5 the reason"},
      {ErrorKind::device, "6 the reason"}, {ErrorKind::comm, "7 the reason"}};
  for (const auto& [kind, wanted] : cases) {
    {
      RunDirectory finished(run_dir(), world());
      finished.begin();
      finished.record_end_of([] {});
    }
    world().barrier();
    const RunDirectory refused(run_dir(), world());
    EXPECT_THROW(refused.record_end_of([&, kind = kind] { fail_on_last(kind); }), comm::AgreedError);
    const std::string found = record();
    EXPECT_TRUE(found.starts_with(wanted)) << exit_code(kind) << ": " << found;
  }
  {  // one rank alone, which has no agreement
    RunDirectory finished(run_dir(), world());
    finished.begin();
    finished.record_end_of([] {});
  }
  world().barrier();
  const RunDirectory failed(run_dir(), world());
  if (world().rank() == last) {
    EXPECT_THROW(failed.record_end_of([] { throw std::logic_error("a bug"); }), std::logic_error);
  }
  EXPECT_EQ(record(), concat("1 rank ", last, ": internal error: a bug\n"));
}

TEST_F(RunDirectoryTest, RefusesASecondRunAndTouchesNothing) {
  const RunDirectory first(run_dir(), world());
  if (world().rank() == 0) {
    record_exit(first.directory(), 75, "of the first run");
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

TEST_F(RunDirectoryTest, ShowsProgressOnAllRanksWhileALockIsWatched) {
  if (world().rank() == 0) {
    LockHolder holder = this_process(0.1);
    holder.host = "elsewhere";
    fs::create_directory(run_dir());
    write_file(run_dir() + "/lock", to_text(holder));
  }
  comm::Heartbeat heart;
  const RunDirectory directory(run_dir(), world(), &heart);
  EXPECT_EQ(heart.progress.snapshot().count, 31u);  // looks, and the end
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
}  // namespace cifar_mpi::run
