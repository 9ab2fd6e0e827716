#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <sstream>
#include <string>

#include "cifar_mpi/base/text.hpp"
#include "run/lock_holders.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi::run {
namespace {

TEST(LockHolder, ComesBackFromItsText) {
  LockHolder holder = this_process(2.5);
  holder.job = "4711";
  holder.restarts = 3;
  EXPECT_EQ(to_text(parse_lock(to_text(holder))), to_text(holder));
  EXPECT_GT(holder.process_start, 0u);
  EXPECT_EQ(holder.pid, static_cast<std::uint64_t>(getpid()));
  EXPECT_EQ(holder.token.size(), 16u);
  EXPECT_NE(this_process().token, holder.token);
}

TEST(LockHolder, IsReadFromAnythingWithoutHarm) {
  for (const char* text : {"", "nonsense", "token=\n", "token=../../etc\nheartbeat_s=-1\npid=x",
                           "heartbeat_s=1e300", "heartbeat_s=nan"}) {
    const LockHolder holder = parse_lock(text);
    EXPECT_EQ(holder.token, "unreadable") << text;
    EXPECT_EQ(patience_s(holder, this_process(2.0)), 6.0) << text;
    EXPECT_EQ(holder.pid, 0u) << text;
  }
}

TEST(WhyStale, KnowsAnEarlierStartOfTheSameJob) {
  LockHolder holder = on_another_host();
  LockHolder me = this_process();
  holder.job = me.job = "17";
  holder.restarts = 1;
  me.restarts = 2;
  EXPECT_EQ(why_stale(holder, me), "this is restart 2 of that job");
  me.restarts = 1;
  EXPECT_EQ(why_stale(holder, me), "");
  me.restarts = 2;
  me.job = "18";
  EXPECT_EQ(why_stale(holder, me), "");
  holder.job = me.job = "";
  EXPECT_EQ(why_stale(holder, me), "");
}

TEST(WhyStale, KnowsAProcessThatIsGoneOnThisHost) {
  LockHolder holder = this_process();
  const LockHolder me = this_process();
  EXPECT_EQ(why_stale(holder, me), "");
  holder.process_start += 1;
  EXPECT_EQ(why_stale(holder, me), "that process is gone");
  holder.process_start = me.process_start;
  holder.pid = ended_process();
  EXPECT_EQ(why_stale(holder, me), "that process is gone");
  // The same number on another host, before a reboot or in another container means nothing.
  for (std::string LockHolder::*where : {&LockHolder::host, &LockHolder::boot, &LockHolder::pid_namespace}) {
    LockHolder other = holder;
    other.*where = "another";
    EXPECT_EQ(why_stale(other, me), "");
  }
}

TEST(WhyStale, KnowsAProcessThatIsNotYetBuried) {
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  LockHolder holder = this_process();
  holder.pid = static_cast<std::uint64_t>(child);
  const std::string stat = read_file(concat("/proc/", child, "/stat"));
  std::istringstream fields(stat.substr(stat.rfind(')') + 2));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  holder.process_start = std::stoull(field);
  EXPECT_EQ(why_stale(holder, this_process()), "");
  kill(child, SIGKILL);
  siginfo_t ended{};
  waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT);
  EXPECT_EQ(why_stale(holder, this_process()), "that process is gone");
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace cifar_mpi::run
