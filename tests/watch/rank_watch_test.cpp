#include "watch/rank_watch.hpp"

#include <gtest/gtest.h>

#include <utility>

#include "watch/stall.hpp"

namespace cifar_mpi::watch {
namespace {

engine::StepRecord record_of(const std::vector<std::pair<float, std::uint64_t>>& ranks) {
  const engine::ControlLayout layout{static_cast<int>(ranks.size())};
  engine::StepRecord record;
  record.slots.resize(layout.floats() - engine::ControlLayout::header_floats);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    float* const slot =
        &record.slots[layout.slot(static_cast<int>(r)) - engine::ControlLayout::header_floats];
    slot[engine::ControlLayout::compute_ms] = ranks[r].first;
    for (std::size_t piece = 0; piece < 4; ++piece) {
      slot[engine::ControlLayout::hash_pieces + piece] =
          static_cast<float>(ranks[r].second >> (16 * piece) & 0xFFFF);
    }
  }
  return record;
}

TEST(RankWatch, NamesTheSlowestRankAgainstTheMedian) {
  RankWatch watch(3);
  watch.add(record_of({{0.0f, 0}, {0.0f, 0}, {0.0f, 0}}));  // the first of a process: no times yet
  EXPECT_FALSE(watch.take());
  watch.add(record_of({{50.0f, 0}, {70.0f, 0}, {51.0f, 0}}));
  watch.add(record_of({{52.0f, 0}, {60.0f, 0}, {51.0f, 0}}));
  const std::optional<RankTimes> times = watch.take();
  ASSERT_TRUE(times);
  EXPECT_DOUBLE_EQ(times->least, 51.0);
  EXPECT_DOUBLE_EQ(times->median, 51.0);
  EXPECT_DOUBLE_EQ(times->most, 65.0);
  EXPECT_EQ(slowest_text(*times, {"a", "b", "c"}),
            "rank 1 on b is the slowest: 65.0 ms of compute per step, the median is 51.0");
  EXPECT_FALSE(watch.take());
  EXPECT_TRUE(slowest_text({50.0, 51.0, 56.0, 2}, {"a", "b", "c"}).empty());
  EXPECT_EQ(slowest_text({50.0, 50.0, 56.0, 1}, {"a", "b"}),
            "rank 1 on b is the slower one: 56.0 ms of compute per step, the other takes 50.0");
}

TEST(RankWatch, TakesTheLowerMiddleOfAnEvenNumberAndForgetsWhatItGave) {
  RankWatch watch(4);
  watch.add(record_of({{90.0f, 0}, {70.0f, 0}, {50.0f, 0}, {60.0f, 0}}));
  EXPECT_DOUBLE_EQ(watch.take().value().median, 60.0);
  watch.add(record_of({{3.0f, 0}, {1.0f, 0}, {4.0f, 0}, {2.0f, 0}}));
  const RankTimes times = watch.take().value();
  EXPECT_DOUBLE_EQ(times.least, 1.0);
  EXPECT_DOUBLE_EQ(times.median, 2.0);
  EXPECT_DOUBLE_EQ(times.most, 4.0);
  EXPECT_EQ(times.slowest, 2);
}

TEST(RankWatch, TakesTheMeanOfTheStepsThatARankWasPartOf) {
  RankWatch watch(3);
  watch.add(record_of({{50.0f, 0}, {0.0f, 0}, {0.0f, 0}}));
  watch.add(record_of({{52.0f, 0}, {70.0f, 0}, {0.0f, 0}}));
  const RankTimes times = watch.take().value();
  EXPECT_DOUBLE_EQ(times.least, 51.0);
  EXPECT_DOUBLE_EQ(times.median, 51.0);
  EXPECT_DOUBLE_EQ(times.most, 70.0);
  EXPECT_EQ(times.slowest, 1);
}

TEST(RankWatch, NamesTheRanksWhoseParametersDiffer) {
  const std::uint64_t right = 0xFEDCBA9876543210u;
  EXPECT_TRUE(desync_text(record_of({{0, right}, {0, right}, {0, right}}), {"a", "b", "c"}).empty());
  // One bit in any of the four pieces.
  for (const int bit : {0, 17, 40, 63}) {
    const std::uint64_t wrong = right ^ (std::uint64_t{1} << bit);
    const std::string text = desync_text(record_of({{0, wrong}, {0, right}, {0, right}}), {"a", "b", "c"});
    EXPECT_NE(text.find("rank 0 (a) differ from those of rank 1"), std::string::npos) << text;
  }
  const std::string tie = desync_text(record_of({{0, right}, {0, 1}}), {"a", "b"});
  EXPECT_NE(tie.find("rank 1 (b) differ from those of rank 0"), std::string::npos) << tie;
}

TEST(WaitsForOthers, IsSaidOfCollectivesAndOfCallsOfAllRanksBetweenTasks) {
  const std::vector<WatchedTask> tasks{{"conv2 backward"}, {"all-reduce of bucket 1", true}};
  constexpr int kNobody = engine::ProgressCounter::kNobody;
  RankStatus worker, server, writer;
  worker.activity = server.activity = comm::Activity::evaluating;
  worker.progress.task = 0, server.progress.task = kNobody;  // it holds no images
  EXPECT_FALSE(waits_for_others(worker, tasks));
  EXPECT_TRUE(waits_for_others(server, tasks));
  worker.progress.task = 1;  // the number of another program's task
  EXPECT_FALSE(waits_for_others(worker, tasks));
  worker.activity = comm::Activity::training;
  EXPECT_TRUE(waits_for_others(worker, tasks));
  writer.activity = comm::Activity::saving, writer.progress.task = kNobody;
  EXPECT_FALSE(waits_for_others(writer, tasks));
  writer.rank = 1;
  EXPECT_TRUE(waits_for_others(writer, tasks));
}

}  // namespace
}  // namespace cifar_mpi::watch
