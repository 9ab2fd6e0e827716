#include "cpu/team.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <thread>
#include <vector>

#include "cifar_mpi/base/clock.hpp"

namespace cifar_mpi::cpu {
namespace {

constexpr double kPatience = 20.0;

/// Waits for `condition`; false if it never holds.
template <class Condition>
bool wait_for(const Condition& condition) {
  const double end = steady_seconds() + kPatience;
  while (!condition() && steady_seconds() < end) std::this_thread::sleep_for(std::chrono::microseconds(100));
  return condition();
}

TEST(Team, TakesOverTheShareOfAThreadThatIsStuck) {
  Team team;
  team.resize(2);
  constexpr std::ptrdiff_t kItems = 64;
  std::atomic<std::ptrdiff_t> done{0};
  std::atomic<bool> other_began{false};
  bool all_others_done = false;
  team.run(kItems, [&](Range range) {
    if (Team::thread_number() == 0) {
      EXPECT_TRUE(wait_for([&] { return other_began.load(); }));
    } else if (!other_began.exchange(true)) {
      all_others_done = wait_for([&] { return done == kItems - range.size(); });
    }
    done += range.size();
  });
  EXPECT_TRUE(all_others_done);
  EXPECT_EQ(done, kItems);
}

TEST(Team, GivesItemsThatBelongTogetherToOneThreadWhereThereAreMany) {
  Team team;
  team.resize(2);
  constexpr std::ptrdiff_t kTogether = 10, kItems = 410;
  std::vector<int> done(kItems);
  std::atomic<int> cuts{0};
  team.run(
      kItems,
      [&](Range range) {
        for (std::ptrdiff_t i = range.begin; i < range.end; ++i) ++done[static_cast<std::size_t>(i)];
        if (range.end % kTogether != 0) ++cuts;
      },
      kTogether);
  EXPECT_EQ(std::count(done.begin(), done.end(), 1), kItems);
  EXPECT_EQ(cuts, 1);  // where one thread's share ends
}

TEST(Team, WakesThreadsThatSleep) {
  Team team;
  team.resize(3);
  for (int time = 0; time < 3; ++time) {
    std::atomic<int> here{0};
    std::atomic<bool> all_here{true};
    // As many chunks as threads; each waits for the others.
    team.run(3, [&](Range) {
      ++here;
      if (!wait_for([&] { return here == 3; })) all_here = false;
    });
    EXPECT_TRUE(all_here);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

TEST(Team, SpinsNoLongerThanAMomentWhenThereIsNoWork) {
  Team team;
  team.resize(2);
  constexpr double kMost = 0.02;
  double spun = kMost;
  for (int time = 0; time < 20 && spun >= kMost; ++time) {  // interrupts of the machine may count
    team.run(2, [](Range) {});
    const double begin = cpu_seconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    spun = cpu_seconds() - begin;
  }
  EXPECT_LT(spun, kMost);
}

TEST(Team, DoesALoopOfABodyAndOfAnotherThreadOnTheCallingThread) {
  Team team;
  team.resize(3);
  std::atomic<std::ptrdiff_t> outer{0}, inner{0}, of_other{0};
  team.run(60, [&](Range range) {
    team.run(5, [&](Range own) { inner += own.size(); });
    if (range.begin == 0) {
      std::thread other([&] { team.run(30, [&](Range own) { of_other += own.size(); }); });
      other.join();
    }
    outer += range.size();
  });
  EXPECT_EQ(outer, 60);
  EXPECT_EQ(inner % 5, 0);
  EXPECT_GE(inner, 15);
  EXPECT_EQ(of_other, 30);
}

}  // namespace
}  // namespace cifar_mpi::cpu
