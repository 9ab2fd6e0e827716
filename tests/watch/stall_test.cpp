#include "watch/stall.hpp"

#include <gtest/gtest.h>

namespace cifar_mpi::watch {
namespace {

using comm::Activity;
using Reason = Stall::Reason;

constexpr int kConv = 0;
constexpr int kReduce = 1;
const std::vector<WatchedTask> kTasks{{"conv2 backward"}, {"all-reduce of bucket 1", true}};

/// A node of three ranks and the clock its judge is shown.
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
    std::vector<bool> waits;
    for (const RankStatus& rank : ranks_) waits.push_back(rank.progress.task == kReduce);
    return judge_.look(now_, ranks_, waits);
  }
  /// Looks every quarter of a second, all watchdogs alive but those of `stopped`; the first verdict ends it.
  std::optional<Stall> pass(double seconds, std::optional<std::size_t> stopped = std::nullopt) {
    for (double passed = 0.0; passed < seconds; passed += 0.25) {
      now_ += 0.25;
      for (std::size_t r = 0; r < ranks_.size(); ++r) ranks_[r].ticks += r != stopped;
      if (const auto stall = look()) return stall;
    }
    return std::nullopt;
  }
  void all_move() {
    for (RankStatus& rank : ranks_) ++rank.progress.count;
  }
  std::string text(const Stall& stall, std::size_t self) {
    return stall_text(stall, ranks_, self, "node1", {{0, kTasks}});
  }

  StallJudge judge_{StallLimits{10.0}};
  std::vector<RankStatus> ranks_;
  double now_ = 1e6;
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
  ASSERT_TRUE(stall);
  EXPECT_EQ(stall->reason, Reason::stuck);
  EXPECT_EQ(stall->culprit, 2u);
  EXPECT_NEAR(stall->seconds, 10.0, 0.3);
  EXPECT_EQ(
      text(*stall, 0),
      "rank 2 on node1 (pid 102) has not moved for 10.0 s in step 41, task conv2 backward; rank 0 waits "
      "for it in step 41, all-reduce of bucket 1");
}

TEST_F(StallJudgeOfANode, BlamesTheStoppedRankAlthoughItStopsWhereTheOthersWait) {
  look();
  const auto stall = pass(20.0, 1);
  ASSERT_TRUE(stall);
  EXPECT_EQ(stall->reason, Reason::stopped);
  EXPECT_EQ(stall->culprit, 1u);
  EXPECT_EQ(
      text(*stall, 2),
      "rank 1 on node1 (pid 101) has shown no sign of life for 10.0 s in step 41, all-reduce of bucket 1, "
      "it is probably stopped; rank 2 waits for it in step 41, all-reduce of bucket 1");
}

TEST_F(StallJudgeOfANode, NamesARankThatHasEndedWithinSeconds) {
  look();
  EXPECT_FALSE(pass(5.0));
  ranks_[0].gone = true;
  const auto stall = pass(2.0);
  ASSERT_TRUE(stall);
  EXPECT_EQ(stall->reason, Reason::gone);
  EXPECT_EQ(stall->culprit, 0u);
  EXPECT_EQ(
      text(*stall, 1),
      "rank 0 on node1 (pid 100) has ended in step 41, all-reduce of bucket 1; rank 1 waits for it in step "
      "41, all-reduce of bucket 1");
}

TEST_F(StallJudgeOfANode, BlamesAnotherNodeWhenAllOfThisOneWait) {
  look();
  const auto stall = pass(11.0);
  ASSERT_TRUE(stall);
  EXPECT_EQ(stall->reason, Reason::waiting);
  EXPECT_NE(text(*stall, 0).find("no rank of node1 moves: they wait for another node"), std::string::npos);
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
  ranks_[1].step = 2;
  look();
  const auto stall = pass(11.0);
  ASSERT_TRUE(stall);
  EXPECT_EQ(describe_place(ranks_[1], kTasks), "in check 2 of the self-check of its device");
  EXPECT_EQ(describe_place(ranks_[0], kTasks), "in the self-check of its device");
}

TEST_F(StallJudgeOfANode, FindsAStoppedRankAsSoonWhileStarting) {
  for (RankStatus& rank : ranks_) rank.activity = Activity::starting;
  look();
  const auto stall = pass(11.0, 2);
  ASSERT_TRUE(stall);
  EXPECT_EQ(stall->reason, Reason::stopped);
  EXPECT_EQ(stall->culprit, 2u);
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
    ASSERT_TRUE(stall);
    EXPECT_EQ(stall->reason, Reason::stopped);
    EXPECT_EQ(stall->culprit, 1u);
    EXPECT_NEAR(stall->seconds, 10.0, 0.3);
  }
}

TEST_F(StallJudgeOfANode, BlamesARankThatHasEndedAlsoWhileItLeft) {
  for (RankStatus& rank : ranks_) rank.activity = Activity::leaving;
  look();
  ranks_[2].gone = true;  // before the others, who may wait for it in MPI's own end
  const auto stall = pass(2.0);
  ASSERT_TRUE(stall);
  EXPECT_EQ(stall->reason, Reason::gone);
  EXPECT_EQ(stall->culprit, 2u);
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
  for (RankStatus& rank : ranks_) rank.progress.task = kConv;
  const Stall stall{Reason::stuck, 0, 7.0};
  EXPECT_EQ(stall_text(stall, ranks_, 2, "node1", programs),
            "rank 0 on node1 (pid 100) has not moved for 7.0 s in step 41, task conv2 backward; rank 2 waits "
            "for it in "
            "step 41, wait for pushes");
}

}  // namespace
}  // namespace cifar_mpi::watch
