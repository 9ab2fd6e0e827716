#include "cifar_mpi/run/run_lock.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "run/lock_holders.hpp"
#include "support/errors.hpp"
#include "support/file_size_limit.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi::run {
namespace {

using namespace std::chrono_literals;

void ignore(const std::string&) {}

/// Gives the threads that renew locks some time, less than a new start would wait.
void pause_briefly(double seconds) { RunLock::sleep_for(std::min(seconds, 0.05)); }

std::unique_ptr<RunLock> lock(const TempDir& dir, const LockHolder& me = this_process(),
                              const RunLock::Pause& pause = pause_briefly) {
  return std::make_unique<RunLock>(dir.opened(), me, ignore, ignore, pause);
}

/// Counts time instead of waiting, and calls `at_look` with the number of the next look.
struct Watch {
  std::function<void(int look)> at_look = [](int) {};
  double waited_s = 0.0;
  int looks = 0;

  void operator()(double seconds) {
    waited_s += seconds;
    at_look(++looks);
  }
};

void set_age(const std::string& path, double seconds) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const timespec then{now.tv_sec - static_cast<time_t>(seconds), now.tv_nsec};
  const timespec times[2] = {then, then};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW), 0);
}

void leave_lock(const TempDir& dir, const LockHolder& holder, double age_s = 0.0) {
  write_file(dir / "lock", to_text(holder));
  set_age(dir / "lock", age_s);
}

LockHolder gone_process() {
  LockHolder gone = this_process();
  gone.pid = ended_process();
  return gone;
}

TEST(RunLock, IsThereWhileItIsHeldAndRefusesAnother) {
  const TempDir dir;
  {
    const auto first = lock(dir);
    EXPECT_TRUE(first->held());
    expect_error(ErrorKind::checkpoint,
                 {dir.path(), "in use", std::to_string(getpid()), this_process().host, "since", "--run-dir"},
                 [&] { lock(dir); });
    EXPECT_TRUE(first->held());
    EXPECT_EQ(dir.files(), 1u);
  }
  EXPECT_EQ(dir.files(), 0u);
  EXPECT_NO_THROW(lock(dir));
}

TEST(RunLock, RefusesALockFromElsewhereAsSoonAsItChangesWhateverTheClocks) {
  for (const double late_s : {-300.0, 0.0, 300.0}) {
    for (const int at : {3, 30}) {
      const TempDir dir;
      LockHolder holder = on_another_host();
      holder.job = "99";
      leave_lock(dir, holder, late_s);
      Watch watch;
      watch.at_look = [&](int look) {
        if (look == at) set_age(dir / "lock", late_s - 10.0);
      };
      std::string heard;
      const auto hear = [&](const std::string& text) { heard += text; };
      expect_error(
          ErrorKind::checkpoint,
          {dir.path(), "in use", "elsewhere", "SLURM job 99", "which has just renewed the lock", "--run-dir"},
          [&] { const RunLock mine(dir.opened(), this_process(), hear, ignore, std::ref(watch)); });
      EXPECT_EQ(watch.looks, at);
      EXPECT_TRUE(heard.starts_with("waiting up to 30 s to see whether process ")) << heard;
      EXPECT_EQ(parse_lock(read_file(dir / "lock")).token, holder.token);
      EXPECT_EQ(dir.files(), 1u);
    }
  }
}

TEST(RunLock, TakesOverALockFromElsewhereThatDoesNotChangeForThreeHeartbeats) {
  for (const double age_s : {-1000.0, 0.0, 1000.0}) {
    for (const double heartbeat_s : {2.0, 50.0}) {
      const TempDir dir;
      LockHolder holder = on_another_host();
      holder.heartbeat_s = heartbeat_s;
      leave_lock(dir, holder, age_s);
      Watch watch;
      watch.at_look = [&](int) { EXPECT_EQ(parse_lock(read_file(dir / "lock")).token, holder.token); };
      std::string heard;
      const auto hear = [&](const std::string& text) { heard = text; };
      const RunLock mine(dir.opened(), this_process(), hear, ignore, std::ref(watch));
      EXPECT_NEAR(watch.waited_s, 3.0 * heartbeat_s, 1e-6);
      EXPECT_LE(watch.waited_s / watch.looks, 1.0 + 1e-6);
      const std::string why = concat("no sign of life for ", static_cast<int>(3.0 * heartbeat_s), " s");
      EXPECT_TRUE(heard.ends_with(why)) << heard;
      EXPECT_TRUE(mine.held());
      EXPECT_EQ(dir.files(), 1u);
    }
  }
}

TEST(RunLock, IsTakenWithoutMoreAdoWhenTheWatchedOneIsReleased) {
  const TempDir dir;
  leave_lock(dir, on_another_host());
  Watch watch;
  watch.at_look = [&](int) { std::filesystem::remove(dir / "lock"); };
  EXPECT_TRUE(lock(dir, this_process(), std::ref(watch))->held());
  EXPECT_EQ(watch.looks, 1);
}

TEST(RunLock, GoesToTheFasterOfTwoThatWatchedIt) {
  const TempDir dir;
  leave_lock(dir, on_another_host());
  LockHolder faster = on_another_host();
  faster.host = "faster";
  Watch watch;
  watch.at_look = [&](int look) {
    if (look == 5) leave_lock(dir, faster);
  };
  expect_error(ErrorKind::checkpoint, {"on faster", "which has just renewed the lock"},
               [&] { lock(dir, this_process(), std::ref(watch)); });
}

TEST(RunLock, TakesOverAStaleLockAndSaysWhy) {
  const TempDir dir;
  leave_lock(dir, gone_process());
  std::string heard;
  const LockHolder me = this_process();
  {
    const RunLock mine(
        dir.opened(), me, [&](const std::string& why) { heard = why; }, ignore);
    EXPECT_NE(heard.find("that process is gone"), std::string::npos) << heard;
    EXPECT_EQ(parse_lock(read_file(dir / "lock")).token, me.token);
    EXPECT_EQ(dir.files(), 1u);
  }
}

TEST(RunLock, IsAnEmptyFileOnAFullDiskUntilThereIsRoom) {
  for (const bool stale : {false, true}) {
    const TempDir dir;
    if (stale) leave_lock(dir, gone_process());
    const LockHolder me = this_process(0.02);
    std::optional<test::FileSizeLimit> full(0);
    std::optional<RunLock> mine(std::in_place, dir.opened(), me, ignore, ignore);
    EXPECT_EQ(read_file(dir / "lock"), "");
    EXPECT_TRUE(mine->held());
    expect_error(ErrorKind::checkpoint, {"is not a readable lock"}, [&] { lock(dir); });
    EXPECT_EQ(dir.files(), 1u);
    full.reset();
    const auto token = [&] { return parse_lock(read_file(dir / "lock")).token; };
    for (int i = 0; i < 500 && token() != me.token; ++i) std::this_thread::sleep_for(10ms);
    EXPECT_EQ(token(), me.token);
    mine.reset();
    EXPECT_EQ(dir.files(), 0u);
  }
  const TempDir dir;
  const test::FileSizeLimit full(0);
  lock(dir);  // held and left while the disk is full
  EXPECT_EQ(dir.files(), 0u);
}

/// Things that a user with write access may put in place of the lock.
const std::vector<std::pair<std::string, std::function<void(const std::string&)>>> kNoLocks{
    {"an empty file", [](const std::string& path) { write_file(path, ""); }},
    {"a damaged lock", [](const std::string& path) { write_file(path, "to"); }},
    {"a pipe", [](const std::string& path) { ASSERT_EQ(mkfifo(path.c_str(), 0666), 0); }},
    {"a link to an endless file",
     [](const std::string& path) { std::filesystem::create_symlink("/dev/zero", path); }},
    {"a link to nothing", [](const std::string& path) { std::filesystem::create_symlink("nowhere", path); }},
    {"a link to itself", [](const std::string& path) { std::filesystem::create_symlink("lock", path); }},
    {"a large file", [](const std::string& path) { write_file(path, std::string(1 << 20, '\n')); }},
    {"a folder", [](const std::string& path) { std::filesystem::create_directory(path); }},
    {"a full folder",
     [](const std::string& path) {
       std::filesystem::create_directory(path);
       write_file(path + "/file", "");
     }},
    {"a file without permissions",
     [](const std::string& path) {
       write_file(path, "token=0a\n");
       std::filesystem::permissions(path, std::filesystem::perms::none);
     }},
};

TEST(RunLock, IsTakenOverFromWhateverStandsThereUnlessThatChanges) {
  for (const auto& [what, make] : kNoLocks) {
    SCOPED_TRACE(what);
    const TempDir dir;
    make(dir / "lock");
    const bool readable = ::access((dir / "lock").c_str(), R_OK) == 0 && what == "a file without permissions";
    if (readable) continue;  // this is root, who may read everything
    Watch watch;
    watch.at_look = [&](int look) {
      if (look == 2) set_age(dir / "lock", 1000.0);
    };
    expect_error(ErrorKind::checkpoint, {dir / "lock", "not a readable lock", "remove it"},
                 [&] { lock(dir, this_process(), std::ref(watch)); });
    Watch undisturbed;
    const LockHolder me = this_process(4.0);
    const auto mine = lock(dir, me, std::ref(undisturbed));
    EXPECT_NEAR(undisturbed.waited_s, 12.0, 1e-6);
    EXPECT_EQ(parse_lock(read_file(dir / "lock")).token, me.token);
  }
}

TEST(RunLock, FollowsEachTokenOnce) {
  const TempDir dir;
  LockHolder a = on_another_host(), b = on_another_host();
  const auto put = [&](const std::string& name, const LockHolder& holder) {
    write_file(dir / name, to_text(holder));
  };
  put("lock", a);
  put("lock.after." + a.token, b);
  put("lock.after." + b.token, a);
  EXPECT_NO_THROW(lock(dir, this_process(), Watch()));
  put("lock", a);
  put("lock.after." + a.token, a);
  EXPECT_NO_THROW(lock(dir, this_process(), Watch()));
  for (const char* name : {"lock", "lock.after.unreadable"}) write_file(dir / name, "");
  EXPECT_NO_THROW(lock(dir, this_process(), Watch()));
  // A long chain also ends in one sentence.
  LockHolder holder = on_another_host();
  std::string name = "lock";
  for (int i = 0; i < 200; ++i) {
    put(name, holder);
    name = "lock.after." + holder.token;
    holder.token = fmt::format("{:016x}", i + 1);
  }
  expect_error(ErrorKind::checkpoint, {dir / "lock", "more than 100 claims"},
               [&] { lock(dir, this_process(), Watch()); });
}

TEST(RunLock, GoesOnWhereAStarterDiedWhileTakingOver) {
  const TempDir dir;
  const LockHolder gone = gone_process();
  leave_lock(dir, gone);
  LockHolder second = gone;
  second.token = this_process().token;
  write_file(dir / ("lock.after." + gone.token), to_text(second));
  {
    const LockHolder me = this_process();
    const auto mine = lock(dir, me);
    EXPECT_EQ(parse_lock(read_file(dir / "lock")).token, me.token);
    EXPECT_EQ(dir.files(), 1u);
  }
  // A run that is still alive is not disturbed.
  leave_lock(dir, gone);
  write_file(dir / ("lock.after." + gone.token), to_text(this_process()));
  expect_error(ErrorKind::checkpoint, {"in use"}, [&] { lock(dir); });
}

TEST(RunLock, IsNotTakenFromAHolderThatRunsOnAfterAStarterDiedWhileTakingOver) {
  const TempDir dir;
  const LockHolder holder = on_another_host();
  const LockHolder gone = gone_process();
  leave_lock(dir, holder);
  write_file(dir / ("lock.after." + holder.token), to_text(gone));
  Watch watch;
  watch.at_look = [&](int look) {
    if (look == 10) set_age(dir / "lock", 1000.0);
  };
  expect_error(ErrorKind::checkpoint, {"elsewhere", "which has just renewed the lock"},
               [&] { lock(dir, this_process(), std::ref(watch)); });
  EXPECT_EQ(parse_lock(read_file(dir / "lock")).token, holder.token);
}

TEST(RunLock, BeatsWhileItIsHeld) {
  const TempDir dir;
  const auto mine = lock(dir, this_process(0.05));
  set_age(dir / "lock", 1000.0);
  struct stat found {};
  for (int i = 0; i < 3000; ++i) {
    std::this_thread::sleep_for(10ms);
    stat((dir / "lock").c_str(), &found);
    if (found.st_mtime > std::time(nullptr) - 500) return;
  }
  FAIL() << "no heartbeat in 30 s";
}

TEST(RunLock, NoticesThatItWasTakenOverAndDoesNotReleaseAnothers) {
  const TempDir dir;
  std::atomic<int> lost{0};
  {
    const RunLock mine(dir.opened(), this_process(0.05), ignore, [&](const std::string& by) {
      EXPECT_NE(by.find("elsewhere"), std::string::npos) << by;
      ++lost;
    });
    write_file(dir / "lock.tmp", to_text(on_another_host()));
    std::filesystem::rename(dir / "lock.tmp", dir / "lock");
    EXPECT_FALSE(mine.held());
    for (int i = 0; i < 3000 && lost == 0; ++i) std::this_thread::sleep_for(10ms);
    std::this_thread::sleep_for(200ms);
  }
  EXPECT_EQ(lost, 1);
  EXPECT_TRUE(std::filesystem::exists(dir / "lock"));
}

TEST(RunLock, NoticesSoonAfterItStoodStill) {
  const TempDir dir;
  const pid_t child = fork();
  if (child == 0) {
    const RunLock mine(dir.opened(), this_process(60.0), ignore, [](const std::string&) { _exit(42); });
    std::this_thread::sleep_for(120s);
    _exit(1);
  }
  while (!std::filesystem::exists(dir / "lock")) std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(100ms);
  kill(child, SIGSTOP);
  std::this_thread::sleep_for(1500ms);
  write_file(dir / "lock.tmp", to_text(on_another_host()));
  std::filesystem::rename(dir / "lock.tmp", dir / "lock");
  const auto begin = std::chrono::steady_clock::now();
  kill(child, SIGCONT);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 42) << status;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s) << "with its next heartbeat";
}

TEST(RunLock, IsNotLostWithItsFolder) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "run");
  std::atomic<int> lost{0};
  const Directory run(dir / "run");
  const RunLock mine(run, this_process(0.02), ignore, [&](const std::string&) { ++lost; });
  std::filesystem::remove_all(dir / "run");
  std::this_thread::sleep_for(200ms);
  EXPECT_TRUE(mine.held());
  EXPECT_EQ(lost, 0);
}

TEST(RunLock, GoesToOneOfManyWhoFindItStale) {
  for (int round = 0; round < 80; ++round) {
    const TempDir dir;
    // All watch another host's lock for 30 ms.
    LockHolder stale = round % 8 == 0 ? on_another_host() : gone_process();
    stale.heartbeat_s = 0.01;
    leave_lock(dir, stale);
    std::atomic<int> holding{0};
    std::atomic<int> refused{0};
    std::atomic<bool> go{false};
    std::vector<std::unique_ptr<RunLock>> locks(8);
    std::vector<std::thread> starters;
    for (auto& mine : locks) {
      starters.emplace_back([&] {
        while (!go) std::this_thread::yield();
        try {
          mine = lock(dir);
          ++holding;
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::checkpoint) << error.what();
          ++refused;
        }
      });
    }
    go = true;
    for (std::thread& starter : starters) starter.join();
    EXPECT_EQ(holding, 1);
    EXPECT_EQ(refused, 7);
    int held = 0;
    for (const auto& mine : locks) held += mine && mine->held();
    EXPECT_EQ(held, 1);
    EXPECT_EQ(dir.files(), 1u);
    locks.clear();
    EXPECT_EQ(dir.files(), 0u);
  }
}

}  // namespace
}  // namespace cifar_mpi::run
