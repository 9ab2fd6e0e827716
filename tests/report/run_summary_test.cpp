#include "report/run_summary.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "cifar_mpi/report/timeline_file.hpp"
#include "report/made_timeline.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi::report {
namespace {

using namespace made;
using TextLines = std::vector<std::string>;

// Rank 0's sections are 1, 20, 24, 2, 2 and 1 ms, of 50 both; of the mean step of 50 ms input is 2 %, …
Timeline small() {
  const Line first = {{kAugment, 1}, {kForward, 20}, {kBackward1, 24},
                      {kBucket0, 2}, {kUpdate0, 2},  {kNobody, 1}};
  const Line second = {{kAugment, 1}, {kForward, 20}, {kBackward1, 26}, {kUpdate0, 2}, {kNobody, 1}};
  return timeline({{first, second}});
}

TEST(BudgetTable, HasALineForEachSection) {
  EXPECT_EQ(budget_table(small()),
            (TextLines{"where the time of a step goes: ms of 1 sampled step on 2 ranks",
                       "section             |      min |     mean |      max | % of step",
                       "----------------------------------------------------------------",
                       "input               |     1.00 |     1.00 |     1.00 |    2.0",
                       "forward             |    20.00 |    20.00 |    20.00 |   40.0",
                       "backward            |    24.00 |    25.00 |    26.00 |   50.0",
                       "all-reduce exposed  |     0.00 |     1.00 |     2.00 |    2.0",
                       "update              |     2.00 |     2.00 |     2.00 |    4.0",
                       "other               |     1.00 |     1.00 |     1.00 |    2.0",
                       "step                |    50.00 |    50.00 |    50.00 |  100.0"}));
  EXPECT_EQ(budget_table({}), TextLines{});
  Timeline served = small();
  served.collective = "server, rank 2";
  EXPECT_EQ(budget_table(served)[6], "push, pull exposed  |     0.00 |     1.00 |     2.00 |    2.0");
}

TEST(RunSummary, HasTableVerdictAndTheWaysToLookAtTheRun) {
  const TempDir folder;
  const std::string run = folder / "a run's";
  std::filesystem::create_directories(run + "/tensorboard");
  std::filesystem::create_directories(run + "/trace");
  write_file(run + "/trace/step_100.perfetto-trace", "");
  write_file(run + "/trace/notes.txt", "");
  write_timeline(run + "/timeline.h5", small());
  const TextLines lines = run_summary(Directory(run));
  ASSERT_EQ(lines.size(), 10u + 1u + 6u + 1u + 4u);
  EXPECT_EQ(lines[0], budget_table(small())[0]);
  EXPECT_TRUE(lines[10].starts_with("verdict: 0.96: ")) << lines[10];
  EXPECT_TRUE(lines[11].starts_with("  parallel efficiency      0.96")) << lines[11];
  EXPECT_EQ(lines[12], "  load balance             0.98  ranks compute for about the same time");
  const std::string quoted = "'" + (folder / "a run") + "'\\''s";
  EXPECT_EQ(
      TextLines(lines.end() - 4, lines.end()),
      (TextLines{"to see more:", "  cifar_mpi_report " + quoted + "'",
                 "  tensorboard --logdir " + quoted + "/tensorboard'",
                 "  https://ui.perfetto.dev, Open trace file: " + run + "/trace/step_100.perfetto-trace"}));
}

TEST(RunSummary, SaysNothingTwice) {
  const TempDir folder;
  const Line fast = {{kForward, 20}, {kBackward1, 25}, {kBucket0, 9}, {kUpdate0, 5}};
  const Line slow = {{kForward, 24}, {kBackward1, 30}, {kUpdate0, 6}};
  write_timeline(folder / "timeline.h5", timeline({{fast, slow, fast}}));
  const TextLines lines = run_summary(folder.opened());
  EXPECT_TRUE(lines[10].starts_with("verdict: 0.89: rank 1 on node1 computes 20 % slower")) << lines[10];
  EXPECT_EQ(lines[12], "  load balance             0.89  see the verdict");
}

TEST(RunSummary, SaysInOneLineWhatIsNotThere) {
  const TempDir folder;
  const std::string run = folder / "run";
  std::filesystem::create_directories(run);
  const TextLines command = {"to see more:", "  cifar_mpi_report " + run};
  TextLines lines = run_summary(Directory(run));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], std::string("no verdict: ") + kNoSample);
  EXPECT_EQ(run_summary(Directory(run), "not sampled")[0], "no verdict: not sampled");
  EXPECT_EQ(TextLines(lines.begin() + 1, lines.end()), command);
  write_file(run + "/timeline.h5", "no HDF5");
  lines = run_summary(Directory(run));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_TRUE(lines[0].starts_with("no verdict: ") && lines[0].find("timeline.h5") != std::string::npos)
      << lines[0];
}

}  // namespace
}  // namespace cifar_mpi::report
