#include "watch/stall.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "support/contains.hpp"

namespace cifar_mpi::watch {
namespace {

using comm::Activity;
using Reason = Stall::Reason;

constexpr int kConv = 0;
constexpr int kReduce = 1;
const std::vector<WatchedTask> kTasks{{"conv2 backward"}, {"all-reduce of bucket 1", true}};

/// A node of three ranks and the clock that its judge reads.
class StallJudgeOfANode : public testing::Test {
 protected:
  StallJudgeOfANode() {
    for (int r = 0; r < 3; ++r) {
      RankStatus rank;
      rank.rank = r;
      rank.pid = 100 + r;
      rank.activity = Activity::training;
      rank.step = 40;
      rank.progress = {1, kReduce};
      ranks_.push_back(rank);
    }
  }

  std::optional<Stall> look() {
    for (RankStatus& rank : ranks_) rank.waits = rank.progress.task == kReduce;
    return judge_.look(now_, ranks_);
  }
  /// Polls every quarter of a second, with all watchdogs alive except those of `stopped`; the first verdict
  /// ends it.
  std::optional<Stall> pass(double seconds, std::optional<std::size_t> stopped = std::nullopt) {
    for (double passed = 0.0; passed < seconds; passed += 0.25) {
      now_ += 0.25;
      for (std::size_t r = 0; r < ranks_.size(); ++r) ranks_[r].ticks += r != stopped;
      if (const auto stall = look()) return stall;
    }
    return std::nullopt;
  }
  /// Whether the verdict is this one, of this rank.
  static testing::AssertionResult is(const std::optional<Stall>& stall, Reason reason,
                                     std::optional<std::size_t> culprit = std::nullopt) {
    if (!stall) return testing::AssertionFailure() << "there is no verdict";
    return testing::AssertionResult(stall->reason == reason && (!culprit || stall->culprit == *culprit))
           << "reason " << static_cast<int>(stall->reason) << ", rank " << stall->culprit;
  }
  void all_move() {
    for (RankStatus& rank : ranks_) ++rank.progress.count;
  }
  std::string text(const Stall& stall, std::size_t self) {
    return stall_text(stall, {ranks_, self, host_, programs_, judge_.others()});
  }

  StallJudge judge_{StallLimits{10.0}};
  std::vector<RankStatus> ranks_;
  double now_ = 1e6;
  std::string host_ = "node1";
  std::vector<WatchedProgram> programs_{{0, kTasks}};
};

TEST_F(StallJudgeOfANode, IsSilentWhileAllMove) {
  for (int i = 0; i < 100; ++i) {
    all_move();
    ASSERT_FALSE(pass(5.0));
  }
}

TEST_F(StallJudgeOfANode, BlamesTheRankThatIsInWorkOfItsOwnWhileTheOthersWait) {
  ranks_[2].progress = {5, kConv};
  look();
  EXPECT_FALSE(pass(9.5));
  const auto stall = pass(1.0);
  ASSERT_TRUE(is(stall, Reason::stuck, 2));
  EXPECT_NEAR(stall->seconds, 10.0, 0.3);
  EXPECT_EQ(text(*stall, 0),
            "rank 2 on node1 (pid 102) has made no progress for 10.0 s in step 41, task conv2 backward; rank "
            "0 waits for it in step 41, all-reduce of bucket 1");
}

TEST_F(StallJudgeOfANode, BlamesTheStoppedRankAlthoughItStopsWhereTheOthersWait) {
  look();
  const auto stall = pass(20.0, 1);
  ASSERT_TRUE(is(stall, Reason::stopped, 1));
  EXPECT_EQ(
      text(*stall, 2),
      "rank 1 on node1 (pid 101) has shown no sign of life for 10.0 s in step 41, all-reduce of bucket 1, "
      "and is probably stopped; rank 2 waits for it in step 41, all-reduce of bucket 1");
}

TEST_F(StallJudgeOfANode, NamesARankThatHasEndedWithinSeconds) {
  look();
  EXPECT_FALSE(pass(5.0));
  ranks_[0].gone = true;
  const auto stall = pass(2.0);
  ASSERT_TRUE(is(stall, Reason::gone, 0));
  EXPECT_EQ(
      text(*stall, 1),
      "rank 0 on node1 (pid 100) has ended in step 41, all-reduce of bucket 1; rank 1 waits for it in step "
      "41, all-reduce of bucket 1");
}

TEST_F(StallJudgeOfANode, EndsAJobInWhichAllRanksWait) {
  look();
  const auto stall = pass(11.0);
  ASSERT_TRUE(is(stall, Reason::waiting));
  EXPECT_EQ(text(*stall, 0),
            "rank 0 on node1 (pid 100) has waited for 10.0 s in step 41, all-reduce of bucket 1; no rank of "
            "this job makes progress: they wait for each other");
}

/// The host of a GPU sees none of its tasks.
TEST_F(StallJudgeOfANode, ThinksOfAGpuWhereRanksWaitBetweenTasks) {
  for (RankStatus& rank : ranks_) rank.progress.task = engine::ProgressCounter::kNobody, rank.waits = true;
  look();
  const std::string line = text({Reason::waiting, 0, 10.0}, 0);
  EXPECT_TRUE(line.ends_with(
      "between tasks; no rank of this job makes progress: they wait for each other, or a GPU hangs"))
      << line;
}

/// A server while its workers compute; ranks with local steps that wait for a slower one.
TEST_F(StallJudgeOfANode, LetsRanksWaitForOneThatComputesAsLongAsItMakesProgress) {
  ranks_[2].progress.task = kConv;
  look();
  for (int task = 0; task < 20; ++task) {
    EXPECT_FALSE(pass(9.0)) << task;
    ++ranks_[2].progress.count;
  }
  const auto stall = pass(11.0);
  ASSERT_TRUE(is(stall, Reason::stuck, 2));
}

TEST_F(StallJudgeOfANode, GivesRankZeroItsTimeAtACheckpointThatTheOthersWaitFor) {
  ranks_[0].activity = Activity::saving;
  look();
  EXPECT_FALSE(pass(49.0));
  EXPECT_TRUE(pass(2.0));
}

TEST_F(StallJudgeOfANode, ReportsOnceThatTheRunGoesOnWithoutAStoppedRankThatIsSpare) {
  ranks_[1].spare = true;
  look();
  int lines = 0;
  for (int i = 0; i < 100; ++i) {
    ++ranks_[0].progress.count;
    const auto stall = pass(1.0, 1);
    if (!stall) continue;
    ++lines;
    EXPECT_FALSE(stall->ends);
    EXPECT_EQ(text(*stall, 0),
              "rank 1 on node1 (pid 101) has shown no sign of life for 10.0 s in step 41, all-reduce of "
              "bucket 1, and is probably stopped; the run continues without it");
  }
  EXPECT_EQ(lines, 1);
  // All steps are done, and the others wait only for this rank.
  const auto stall = pass(11.0, 1);
  ASSERT_TRUE(is(stall, Reason::stopped, 1));
  EXPECT_TRUE(stall->ends);
}

TEST_F(StallJudgeOfANode, LetsARankWaitForTheReaderOfItsLogAndTheOthersForThatRank) {
  ranks_[0].logs = true;
  look();
  EXPECT_FALSE(pass(100.0));
  ranks_[0].logs = false;
  EXPECT_FALSE(pass(9.0));
  EXPECT_TRUE(pass(1.5));
}

TEST_F(StallJudgeOfANode, DoesNotBlameARankForTheTimeInWhichItWasStopped) {
  ranks_[1].spare = true;
  ranks_[1].progress.task = kConv;
  look();
  for (int i = 0; i < 30; ++i) {
    ++ranks_[0].progress.count;
    const auto stall = pass(1.0, 1);
    EXPECT_FALSE(stall && stall->ends);
  }
  for (int i = 0; i < 9; ++i) {  // it goes on
    ++ranks_[0].progress.count;
    EXPECT_FALSE(pass(1.0));
  }
  ++ranks_[0].progress.count;
  const auto stall = pass(2.0);
  ASSERT_TRUE(is(stall, Reason::stuck, 1));
}

TEST_F(StallJudgeOfANode, NamesAWaiterOnlyWhereOneWaits) {
  for (RankStatus& rank : ranks_) rank.progress.task = kConv;
  look();
  const Stall stall{Reason::stuck, 1, 7.0};
  EXPECT_FALSE(contains(text(stall, 0), "waits for it"));
  ranks_[2].waits = true;
  EXPECT_TRUE(contains(text(stall, 0), "; rank 2 waits for it in step 41"));
}

TEST_F(StallJudgeOfANode, TakesCollectivesThatArePolledInTurnForNoProgress) {
  look();
  std::optional<Stall> stall;
  for (int i = 0; i < 50 && !stall; ++i) {
    for (RankStatus& rank : ranks_) rank.progress.task = i % 2 == 0 ? kReduce + 1 : kReduce;
    stall = pass(0.25);
  }
  EXPECT_TRUE(stall);
}

TEST_F(StallJudgeOfANode, BlamesTheOneFurthestBehind) {
  for (RankStatus& rank : ranks_) rank.progress.task = kConv;
  ranks_[1].step = 39;
  look();
  const auto stall = pass(11.0);
  ASSERT_TRUE(stall);
  EXPECT_EQ(stall->culprit, 1u);
}

TEST_F(StallJudgeOfANode, WaitsLongerWhileStartingAndAtACheckpoint) {
  for (const Activity activity : {Activity::starting, Activity::saving}) {
    for (RankStatus& rank : ranks_) rank.activity = activity;
    all_move();
    look();
    EXPECT_FALSE(pass(49.0));
    EXPECT_TRUE(pass(2.0));
    EXPECT_EQ(describe_place(ranks_[0], kTasks),
              activity == Activity::starting ? "while starting" : "at a checkpoint");
  }
}

TEST_F(StallJudgeOfANode, NamesTheCheckThatADeviceHangsIn) {
  for (RankStatus& rank : ranks_) rank.activity = Activity::checking, rank.step = 0;
  ranks_[1].step = 4;
  ranks_[1].progress.task = engine::ProgressCounter::kNobody;
  look();
  EXPECT_FALSE(pass(49.0));  // each check may load libraries from a slow file system
  const auto stall = pass(2.0);
  ASSERT_TRUE(stall);
  EXPECT_EQ(describe_place(ranks_[1], kTasks), "in check 4 (runners) of the self-check of its device");
  EXPECT_FALSE(contains(culprit_text(*stall, {ranks_, 0, "node1", {}, {}}), "NCCL_SOCKET_IFNAME"));
  ranks_[1].step = static_cast<std::uint64_t>(comm::DeviceCheck::all_reduce);
  EXPECT_TRUE(
      contains(culprit_text(*stall, {ranks_, 0, "node1", {}, {}}),
               " (all-reduce) of the self-check of its device, where the GPUs of all ranks exchange data"));
  EXPECT_EQ(describe_place(ranks_[0], kTasks), "in the self-check of its device");
}

TEST_F(StallJudgeOfANode, FindsAStoppedRankAsSoonWhileStarting) {
  for (RankStatus& rank : ranks_) rank.activity = Activity::starting;
  look();
  const auto stall = pass(11.0, 2);
  ASSERT_TRUE(is(stall, Reason::stopped, 2));
}

TEST_F(StallJudgeOfANode, DoesNotCountATimeInWhichItDidNotLook) {
  look();
  now_ += 3600.0;  // the whole job was stopped, or the clock jumped
  EXPECT_FALSE(look());
  EXPECT_FALSE(pass(8.0));
  EXPECT_TRUE(pass(3.0));
}

TEST_F(StallJudgeOfANode, IsNotMisledByAClockThatGoesBack) {
  look();
  EXPECT_FALSE(pass(6.0));
  now_ -= 1e5;
  EXPECT_FALSE(look());
  EXPECT_FALSE(pass(3.5));
  EXPECT_TRUE(pass(1.0));
}

TEST_F(StallJudgeOfANode, NeverSpeaksWithoutALimitButOfTheDead) {
  judge_ = StallJudge(StallLimits{0.0});
  look();
  EXPECT_FALSE(pass(100000.0));
  ranks_[1].gone = true;
  EXPECT_TRUE(pass(3.0));
}

TEST_F(StallJudgeOfANode, LetsRanksWatchAndMeasureAsLongAsTheyLikeUnlessOneIsStopped) {
  for (const Activity activity : {Activity::watching, Activity::measuring}) {
    judge_ = StallJudge(StallLimits{10.0});
    for (RankStatus& rank : ranks_) rank.activity = activity;
    look();
    EXPECT_FALSE(pass(1000.0));
    const auto stall = pass(11.0, 1);
    ASSERT_TRUE(is(stall, Reason::stopped, 1));
    EXPECT_NEAR(stall->seconds, 10.0, 0.3);
  }
}

TEST_F(StallJudgeOfANode, BlamesARankThatHasEndedAlsoWhileItLeft) {
  for (RankStatus& rank : ranks_) rank.activity = Activity::leaving;
  look();
  ranks_[2].gone = true;  // before the others, which may wait for it in MPI_Finalize
  const auto stall = pass(2.0);
  ASSERT_TRUE(is(stall, Reason::gone, 2));
}

TEST_F(StallJudgeOfANode, LeavesRanksThatLeaveAlone) {
  for (RankStatus& rank : ranks_) rank.activity = Activity::leaving;
  look();
  EXPECT_FALSE(pass(1000.0, 1));
}

/// Servers replay another program than workers.
TEST_F(StallJudgeOfANode, NamesTheTasksOfEachRanksOwnProgram) {
  const std::vector<WatchedProgram> programs{{0, kTasks}, {2, {{"wait for pushes", true}, {"update"}}}};
  EXPECT_EQ(tasks_of(1, programs).front().name, "conv2 backward");
  EXPECT_TRUE(tasks_of(0, {}).empty());
  programs_ = programs;
  for (RankStatus& rank : ranks_) rank.progress.task = kConv;
  ranks_[2].waits = true;
  const Stall stall{Reason::stuck, 0, 7.0};
  EXPECT_EQ(text(stall, 2),
            "rank 0 on node1 (pid 100) has made no progress for 7.0 s in step 41, task conv2 backward; rank "
            "2 waits for it in step 41, wait for pushes");
}

/// The same node as one of three.
class StallJudgeOfAJob : public StallJudgeOfANode {
 protected:
  StallJudgeOfAJob() { judge_ = StallJudge(StallLimits{10.0}, 0, {{"node2 (rank 3)"}, {"node3 (rank 4)"}}); }

  /// `node2` and `node3` report once a second, with so much of their patience used up; below 0: they do not.
  std::optional<Stall> pass_with(double seconds, double node2, double node3) {
    for (double passed = 0.0; passed < seconds; passed += 1.0) {
      if (node2 >= 0.0) judge_.hear(0, node2);
      if (node3 >= 0.0) judge_.hear(1, node3);
      if (const auto stall = pass(1.0)) return stall;
    }
    return std::nullopt;
  }
};

TEST_F(StallJudgeOfAJob, LetsANodeWaitWhileARankOfAnotherOneMoves) {
  look();
  EXPECT_FALSE(pass_with(1000.0, 2.0, 0.9));
  EXPECT_GE(judge_.quiet(), 99.0);
  const auto stall = pass_with(2.0, 2.0, 1.0);
  ASSERT_TRUE(is(stall, Reason::waiting));
  EXPECT_TRUE(contains(text(*stall, 0),
                       "; no rank of the 3 nodes of this job makes progress: they wait for each other, or "));
}

TEST_F(StallJudgeOfAJob, StillEndsByItsOwnStuckRank) {
  ranks_[2].progress.task = kConv;
  look();
  const auto stall = pass_with(11.0, 0.0, 0.0);
  ASSERT_TRUE(is(stall, Reason::stuck));
}

TEST_F(StallJudgeOfAJob, WaitsFiveTimesAsLongForANodeThatHasNeverReported) {
  look();
  EXPECT_FALSE(pass_with(49.0, 5.0, -1.0));
  const auto stall = pass_with(2.0, 5.0, -1.0);
  ASSERT_TRUE(is(stall, Reason::waiting));
  EXPECT_TRUE(contains(
      text(*stall, 0),
      "; no rank of node1 makes progress, and no report has ever arrived from node3 (rank 4): they wait "));
}

TEST_F(StallJudgeOfAJob, NamesANodeThatReportsNoLongerWhenAllWait) {
  look();
  EXPECT_FALSE(pass_with(60.0, 5.0, 0.2));
  EXPECT_FALSE(pass_with(8.0, 5.0, -1.0));
  const auto stall = pass_with(3.0, 5.0, -1.0);
  ASSERT_TRUE(is(stall, Reason::unheard));
  EXPECT_EQ(text(*stall, 0),
            "node3 (rank 4) has given no sign of life for 10.0 s: its processes are stopped, or the network "
            "is gone; rank 0 waits for it in step 41, all-reduce of bucket 1");
}

TEST_F(StallJudgeOfAJob, EndsNothingByLostReportsAlone) {
  look();
  EXPECT_FALSE(pass_with(5.0, 0.2, 0.2));
  std::vector<std::string> lines;
  for (int i = 0; i < 100; ++i) {
    all_move();
    const auto stall = pass_with(9.0, 0.2, -1.0);
    if (!stall) continue;
    EXPECT_FALSE(stall->ends);
    lines.push_back(text(*stall, 0));
  }
  EXPECT_EQ(lines,
            (std::vector<std::string>{"node3 (rank 4) has given no sign of life for 10.0 s: its processes "
                                      "are stopped, or the network is gone; the run continues"}));
}

TEST_F(StallJudgeOfAJob, DoesNotWaitForReportsOfANodeWhoseRanksHaveAllLeft) {
  look();
  EXPECT_FALSE(pass_with(5.0, 1.0, std::numeric_limits<double>::infinity()));
  const auto stall = pass_with(7.0, 1.0, -1.0);
  ASSERT_TRUE(is(stall, Reason::waiting));
}

TEST_F(StallJudgeOfAJob, IsSpokenForByTheFirstRankWhoseWatchdogMoves) {
  StallJudge second(StallLimits{10.0}, 1, {{"node2 (rank 3)"}});
  const auto look_as_second = [&](std::uint64_t ticks_of_first) {
    now_ += 0.25;
    ranks_[0].ticks += ticks_of_first;
    ++ranks_[1].ticks;
    second.look(now_, ranks_);
  };
  for (int i = 0; i < 20; ++i) look_as_second(1);
  EXPECT_FALSE(second.speaks());
  for (int i = 0; i < 12; ++i) look_as_second(0);
  EXPECT_TRUE(second.speaks());
  look_as_second(1);
  EXPECT_FALSE(second.speaks());
}

}  // namespace
}  // namespace cifar_mpi::watch
