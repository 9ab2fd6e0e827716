#include "watch/deadline.hpp"

#include <gtest/gtest.h>

namespace cifar_mpi::watch {
namespace {

TimeLimits limits_of(double minutes, const std::string& job_end, double wall_now) {
  return time_limits(
      minutes,
      [&](const char* name) -> const char* {
        return name == std::string("SLURM_JOB_END_TIME") && !job_end.empty() ? job_end.c_str() : nullptr;
      },
      wall_now);
}

TEST(TimeLimits, AreReadFromTheOptionAndTheJob) {
  EXPECT_EQ(limits_of(0.0, "", 100.0).stop_after_s, TimeLimits::kNever);
  EXPECT_EQ(limits_of(0.0, "", 100.0).job_end_s, TimeLimits::kNever);
  EXPECT_EQ(limits_of(0.5, "", 100.0).stop_after_s, 30.0);
  EXPECT_EQ(limits_of(0.0, "1795167435", 1795167000.0).job_end_s, 435.0);
}

TEST(TimeLimits, DoNotBelieveAnEndThatMakesNoSense) {
  for (const char* end : {"", "soon", "1795167435s", "1795166999", "4294967294", "-1", "nan", "inf"}) {
    EXPECT_EQ(limits_of(0.0, end, 1795167000.0).job_end_s, TimeLimits::kNever) << end;
  }
}

TEST(Deadline, StopsAfterTheTimeAsked) {
  Deadline deadline({60.0, TimeLimits::kNever}, 1000.0);
  EXPECT_FALSE(deadline.due(1000.0));
  EXPECT_FALSE(deadline.due(1059.9));
  const auto text = deadline.due(1060.0);
  ASSERT_TRUE(text);
  EXPECT_EQ(*text, "stopping: --stop-after is reached after 60 s of training");
  EXPECT_EQ(deadline.describe(), "will stop with a checkpoint after 60 s (--stop-after)");
}

TEST(Deadline, KeepsALeastMarginBeforeTheEndOfTheJob) {
  Deadline deadline({TimeLimits::kNever, 100.0}, 0.0);
  for (double now = 0.0; now < 89.95; now += 0.1) ASSERT_FALSE(deadline.due(now)) << now;
  EXPECT_TRUE(deadline.due(90.0));
}

TEST(Deadline, KeepsMoreFreeWhereCheckpointsOrStepsTakeLong) {
  Deadline deadline({TimeLimits::kNever, 100.0}, 0.0);
  deadline.checkpoint_took(8.0);
  deadline.checkpoint_took(2.0);
  EXPECT_EQ(deadline.margin(), 24.0);
  EXPECT_FALSE(deadline.due(5.0));
  EXPECT_EQ(deadline.margin(), 34.0);
  EXPECT_FALSE(deadline.due(10.0));
  for (double now = 10.0; now < 65.9; now += 0.5) ASSERT_FALSE(deadline.due(now)) << now;
  EXPECT_TRUE(deadline.due(66.1));
}

TEST(Deadline, TakesTheLatestTimeWhenTheClockGoesBack) {
  Deadline deadline({60.0, TimeLimits::kNever}, 1000.0);
  EXPECT_FALSE(deadline.due(1050.0));
  EXPECT_FALSE(deadline.due(0.0));
  EXPECT_FALSE(deadline.due(1055.0));
  EXPECT_TRUE(deadline.due(1061.0));
  EXPECT_TRUE(deadline.due(0.0));
}

TEST(Deadline, StopsAtOnceWhenTheClockJumpsOverTheEnd) {
  Deadline deadline({TimeLimits::kNever, 1000.0}, 0.0);
  EXPECT_FALSE(deadline.due(1.0));
  EXPECT_TRUE(deadline.due(1e9));
}

TEST(Deadline, NeverComesWithoutLimits) {
  Deadline deadline({}, 0.0);
  EXPECT_TRUE(deadline.describe().empty());
  EXPECT_FALSE(deadline.due(1e12));
}

}  // namespace
}  // namespace cifar_mpi::watch
