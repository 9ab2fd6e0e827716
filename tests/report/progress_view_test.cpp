#include "cifar_mpi/report/progress_view.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "report/made_report.hpp"
#include "support/contains.hpp"

namespace cifar_mpi::report {
namespace {

using made::report_at;

StepReport with_ranks(StepReport r) {
  r.compute_ms_median = 50.0;
  r.compute_ms_max = 59.0;
  r.slowest_rank = 3;
  return r;
}

Sparkline falling() {
  Sparkline line;
  for (int i = 8; i > 0; --i) line.add(i);
  return line;
}

std::string progress(const StepReport& r, int columns) { return progress_line(r, {}, columns, false); }

TEST(LogLine, HasTheFormatOfTheTutorialAndTheTimeLeft) {
  EXPECT_EQ(
      log_line(report_at(100), "2026-11-20 06:17:35.123"),
      "2026-11-20 06:17:35.123: step 100, loss = 2.42 (5012.3 examples/sec; 0.250 sec/batch; 1:15 left; "
      "epoch 1.50)");
}

TEST(ProgressLine, ShowsTheShareDoneAndTheTimeLeft) {
  const std::string line = progress(report_at(100), 120);
  EXPECT_TRUE(line.starts_with(" 25% [")) << line;
  EXPECT_TRUE(line.ends_with("] step 100/400  epoch 1.50  loss 2.42  5012 images/s  1:15 left")) << line;
  EXPECT_EQ(line.size(), 119u);
  const auto filled = static_cast<double>(std::count(line.begin(), line.end(), '#'));
  const auto empty = static_cast<double>(std::count(line.begin(), line.begin() + 60, '.'));
  EXPECT_NEAR(filled / (filled + empty), 0.25, 0.05) << line;
}

TEST(ProgressLine, ShowsTheLastTestAccuracyIfThereIsRoom) {
  StepReport r = report_at(100);
  r.test_accuracy = 0.7123;
  EXPECT_TRUE(progress(r, 120).ends_with("  loss 2.42  test 71.2 %  5012 images/s  1:15 left"));
  const std::string narrow = progress(r, 70);
  EXPECT_TRUE(narrow.ends_with("  epoch 1.50  loss 2.42  5012 images/s  1:15 left")) << narrow;
}

TEST(ProgressLine, CountsHours) {
  StepReport r = report_at(100);
  r.seconds_per_step = 12.21;  // 300 steps: 3663 s
  const std::string line = progress(r, 120);
  EXPECT_TRUE(line.ends_with("  1:01:03 left")) << line;
}

TEST(ProgressLine, ShowsHowTheLossWentOnAndWhoIsSlow) {
  const std::string line = progress_line(with_ranks(report_at(100)), falling(), 120, true);
  EXPECT_TRUE(line.ends_with("loss 2.42 █▇▆▅▄▃▂▁  5012 images/s  slowest rank 3 (+18 %)  1:15 left")) << line;
  EXPECT_EQ(line.size(), 119u + 8 * 2) << "a block is one column and three bytes";
}

TEST(ProgressLine, NamesNobodyWhereNobodyIsKnown) {
  StepReport r = with_ranks(report_at(100));
  r.slowest_rank = -1;
  EXPECT_FALSE(contains(progress(r, 120), "slowest"));
}

TEST(ProgressLine, LeavesOutWhatDoesNotFitInOneOrder) {
  const StepReport r = with_ranks(report_at(100));
  const auto at = [&](int columns) { return progress_line(r, falling(), columns, false); };
  EXPECT_EQ(
      at(101),
      " 25%  step 100/400  epoch 1.50  loss 2.42 **+=-.__  5012 images/s  slowest rank 3 (+18 %)  1:15 left");
  EXPECT_EQ(at(77), " 25%  step 100/400  epoch 1.50  loss 2.42 **+=-.__  5012 images/s  1:15 left");
  EXPECT_EQ(at(76), " 25% [##.......] step 100/400  loss 2.42 **+=-.__  5012 images/s  1:15 left");
  EXPECT_EQ(at(60), " 25%  step 100/400  loss 2.42  5012 images/s  1:15 left");
  EXPECT_EQ(at(51), " 25% [##......] step 100/400  loss 2.42  1:15 left")
      << "the curve comes with the speed only";
  EXPECT_EQ(at(30), " 25%  step 100/400  1:15 left");
  EXPECT_EQ(at(4), " 25");
}

TEST(ProgressLine, NeverWraps) {
  for (int columns = 0; columns <= 200; ++columns) {
    const std::string line = progress_line(with_ranks(report_at(400)), falling(), columns, false);
    EXPECT_LE(line.size(), static_cast<std::size_t>(std::max(columns - 1, 1))) << line;
    EXPECT_FALSE(line.empty());
  }
}

TEST(Sparkline, RunsFromTheLeastToTheGreatest) {
  EXPECT_EQ(falling().text(8, true), "█▇▆▅▄▃▂▁");
  EXPECT_EQ(falling().text(8, false), "**+=-.__");
  EXPECT_EQ(falling().text(4, true), "█▆▃▁") << "means of two each";
  EXPECT_EQ(falling().text(0, true), "");
  EXPECT_EQ(Sparkline().text(8, true), "");
  Sparkline flat;
  for (const double value :
       {2.0, std::numeric_limits<double>::quiet_NaN(), 2.0, std::numeric_limits<double>::infinity()})
    flat.add(value);
  EXPECT_EQ(flat.text(8, true), "▁▁");
}

// 100 000 values; the second half is low, and so is that of the characters, except for the middle one.
TEST(Sparkline, ShowsAllOfALongRun) {
  Sparkline line;
  for (int i = 0; i < 100'000; ++i) line.add(i < 50'000 ? 5.0 : 1.0);
  const std::string text = line.text(16, false);
  EXPECT_EQ(text.size(), 16u);
  EXPECT_EQ(text.substr(0, 7), std::string(7, '*')) << text;
  EXPECT_EQ(text.substr(9), std::string(7, '_')) << text;
}

TEST(ProgressView, AsksForTheColumnsEachTimeAndWritesPlainLinesWithoutAny) {
  int columns = 100;
  testing::internal::CaptureStdout();
  {
    ProgressView view(
        Log(), [&] { return columns; }, false);
    view.report(report_at(100));
    columns = 60;
    view.report(report_at(110));
    view.event("an event");
    columns = 0;
    view.report(report_at(120));
  }
  const std::string out = testing::internal::GetCapturedStdout();
  const std::string clear = "\r\033[K";
  Sparkline none, two;
  two.add(2.416);
  const std::string first = progress_line(report_at(100), two, 100, false);
  two.add(2.416);
  const std::string begin =
      clear + first + clear + progress_line(report_at(110), two, 60, false) + clear + "an event\n";
  ASSERT_TRUE(out.starts_with(begin)) << out;
  EXPECT_TRUE(out.ends_with(
      ": step 120, loss = 2.42 (5012.3 examples/sec; 0.250 sec/batch; 1:10 left; epoch 1.50)\n"))
      << out;
  EXPECT_EQ(out.find('\r', begin.size()), std::string::npos);
}

}  // namespace
}  // namespace cifar_mpi::report
