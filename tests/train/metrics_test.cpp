#include "cifar_mpi/train/metrics.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "support/temp_dir.hpp"

namespace cifar_mpi::train {
namespace {

StepReport report_at(std::uint64_t step) {
  StepReport r;
  r.step = step;
  r.total_steps = 400;
  r.epoch = 1.5;
  r.cross_entropy = 2.0;
  r.decay_term = 0.416;
  r.learning_rate = 0.1;
  r.seconds_per_step = 0.25;
  r.images_per_second = 5012.34;
  return r;
}

TEST(LogLine, HasTheFormatOfTheTutorial) {
  EXPECT_EQ(log_line(report_at(100), "2026-11-20 06:17:35.123"),
            "2026-11-20 06:17:35.123: step 100, loss = 2.42 (5012.3 examples/sec; 0.250 sec/batch)");
}

TEST(ProgressBar, ShowsTheShareDoneAndTheTimeLeft) {
  const std::string bar = progress_bar(report_at(100), 120);
  EXPECT_TRUE(bar.starts_with(" 25% [")) << bar;
  EXPECT_TRUE(bar.ends_with("step 100/400  epoch 1.50  loss 2.42  5012 images/s  1:15 left")) << bar;
  EXPECT_EQ(bar.size(), 119u);
  const auto filled = static_cast<double>(std::count(bar.begin(), bar.end(), '#'));
  const auto empty = static_cast<double>(std::count(bar.begin(), bar.end(), '.'));
  EXPECT_NEAR(filled / (filled + empty), 0.25, 0.05) << bar;
}

TEST(ProgressBar, NeverWraps) {
  for (const int columns : {1, 2, 20, 60, 80, 200}) {
    EXPECT_LE(progress_bar(report_at(400), columns).size(),
              static_cast<std::size_t>(std::max(columns - 1, 1)));
  }
}

TEST(MetricsFile, CutsBackToTheResumedStepAndGoesOn) {
  const TempDir folder;
  const std::string path = folder / "metrics.jsonl";
  {
    MetricsFile file(path, 0);
    for (const std::uint64_t step : {10, 20, 30}) file.write(report_at(step));
  }
  write_file(path, read_file(path) + "{\"step\":40,\"epo");  // a torn last line
  {
    MetricsFile file(path, 20);
    file.write(report_at(30));
  }
  const std::string text = read_file(path);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3) << text;
  std::size_t at = 0;
  for (const char* step : {"{\"step\":10,", "{\"step\":20,", "{\"step\":30,"}) {
    at = text.find(step, at);
    ASSERT_NE(at, std::string::npos) << text;
  }
}

TEST(MetricsFile, WritesNumbersThatJsonKnows) {
  const TempDir folder;
  StepReport r = report_at(10);
  r.cross_entropy = std::numeric_limits<double>::quiet_NaN();
  MetricsFile(folder / "metrics.jsonl", 0).write(r);
  EXPECT_NE(read_file(folder / "metrics.jsonl").find("\"cross_entropy\":null,\"decay_term\":0.416,"),
            std::string::npos);
}

TEST(MetricsFile, SaysWhereItCannotWrite) {
  const TempDir folder;
  expect_error(ErrorKind::io, {folder / "none/metrics.jsonl"},
               [&] { MetricsFile(folder / "none/metrics.jsonl", 0); });
}

}  // namespace
}  // namespace cifar_mpi::train
