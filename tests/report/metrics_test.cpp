#include "cifar_mpi/report/metrics.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "report/made_report.hpp"
#include "support/errors.hpp"
#include "support/file_size_limit.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi::report {
namespace {

using test::FileSizeLimit;

const std::string kFirstLine = "{\"format\":\"cifar_mpi metrics\",\"version\":1,\"kind\":\"header\"}\n";

using made::report_at;

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
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4) << text;
  EXPECT_TRUE(text.starts_with(kFirstLine)) << text;
  EXPECT_TRUE(text.ends_with(",\"kind\":\"step\"}\n")) << text;
  std::size_t at = 0;
  for (const char* step : {"{\"step\":10,", "{\"step\":20,", "{\"step\":30,"}) {
    at = text.find(step, at);
    ASSERT_NE(at, std::string::npos) << text;
  }
}

TEST(MetricsFile, DropsTornAndForeignLinesAndKeepsTheRestByteForByte) {
  const TempDir folder;
  const std::string path = folder / "metrics.jsonl";
  { MetricsFile(path, 0).write(report_at(10)); }
  const std::string good = read_file(path);
  const std::string evaluation = "{\"step\":10,\"test_accuracy\":0.5}\n";
  write_file(path,
             good + "{\"step\":9,\"torn\n" + evaluation + "a line of somebody\n{\"step\":5,\"a\":{\"b\":1}");
  { const MetricsFile file(path, 10); }
  EXPECT_EQ(read_file(path), good + evaluation);
  { const MetricsFile file(path, 10, Log(1), true); }
  EXPECT_EQ(read_file(path), good) << "a run killed at its end evaluates again";
  { const MetricsFile file(path, 9); }
  EXPECT_EQ(read_file(path), kFirstLine);
}

TEST(MetricsFile, GoesOnWithAFileOfBeforeTheFirstLineSaidAVersion) {
  const TempDir folder;
  const std::string path = folder / "metrics.jsonl", old = "{\"step\":10,\"epoch\":0.5}\n";
  write_file(path, old);
  { MetricsFile(path, 10).write(EvaluationReport{10, 0.5, 0.5, 1.0}); }
  EXPECT_TRUE(read_file(path).starts_with(old + "{\"step\":10,\"epoch\":0.5,\"weights\"")) << read_file(path);
}

TEST(MetricsFile, RefusesToGoOnWithAnotherVersion) {
  const TempDir folder;
  const std::string path = folder / "metrics.jsonl";
  const std::string newer = "{\"format\":\"cifar_mpi metrics\",\"version\":12}\n{\"step\":3,\"a\":1}\n";
  write_file(path, newer);
  expect_error(ErrorKind::io, {path, "version 12", "writes 1", "move it away"},
               [&] { MetricsFile file(path, 1); });
  EXPECT_EQ(read_file(path), newer);
}

RunEvent event_at(RunEventKind kind, std::uint64_t step) {
  RunEvent event;
  event.kind = kind;
  event.step = step;
  event.time = "now";
  return event;
}

TEST(MetricsFile, KeepsEventsUpToTheStepAndTellsHowFarItHadCome) {
  const TempDir folder;
  const std::string path = folder / "metrics.jsonl";
  {
    MetricsFile file(path, 0);
    EXPECT_EQ(file.reached(), 0u);
    file.write(event_at(RunEventKind::start, 0));
    for (const std::uint64_t step : {10, 20, 30}) file.write(report_at(step));
    file.write(event_at(RunEventKind::fault, 37));
  }
  MetricsFile file(path, 20);
  EXPECT_EQ(file.reached(), 37u);
  RunEvent resume = event_at(RunEventKind::resume, 20);
  resume.text = "8 diverged";
  resume.ranks = 2;
  resume.hosts = "a x 2";
  resume.global_batch = 256;
  resume.total_steps = 40;
  resume.reached = 37;
  file.write(resume);
  const std::string text = read_file(path);
  EXPECT_TRUE(text.starts_with(
      kFirstLine + "{\"event\":\"start\",\"step\":0,\"time\":\"now\",\"kind\":\"event\"}\n{\"step\":10,"))
      << text;
  EXPECT_FALSE(contains(text, "fault"));
  EXPECT_TRUE(text.ends_with(
      "\n{\"event\":\"resume\",\"step\":20,\"time\":\"now\",\"ranks\":2,\"hosts\":\"a x 2\","
      "\"global_batch\":256,\"total_steps\":40,\"reached\":37,\"text\":\"8 diverged\",\"kind\":\"event\"}\n"))
      << text;
}

TEST(MetricsFile, ForgetsTheEndOfARunThatEndsAgain) {
  const TempDir folder;
  const std::string path = folder / "metrics.jsonl";
  {
    MetricsFile file(path, 0);
    file.write(report_at(10));
    file.write(event_at(RunEventKind::end, 10));
  }
  { const MetricsFile file(path, 10); }
  EXPECT_TRUE(contains(read_file(path), "\"end\"")) << "a continued run ended before";
  { const MetricsFile file(path, 10, Log(1), true); }
  EXPECT_FALSE(contains(read_file(path), "\"end\""));
}

TEST(MetricsFile, LeavesOutComputeTimesThatNobodyMeasured) {
  const TempDir folder;
  const std::string path = folder / "metrics.jsonl";
  {
    MetricsFile file(path, 0);
    StepReport r = report_at(10);
    file.write(r);
    r.compute_ms_min = 1.0;
    r.compute_ms_median = 2.0;
    r.compute_ms_max = 3.5;
    file.write(r);
  }
  const std::string text = read_file(path);
  EXPECT_TRUE(contains(text, ",\"compute_ms\":null,\"kind\":\"step\"}\n"));
  EXPECT_TRUE(contains(text, ",\"compute_ms\":{\"min\":1,\"median\":2,\"max\":3.5},\"kind\":\"step\"}\n"));
}

TEST(MetricsFile, PutsEveryFigureUnderItsName) {
  const TempDir folder;
  const std::string path = folder / "metrics.jsonl";
  {
    MetricsFile file(path, 0);
    StepReport r = report_at(10);
    r.train_accuracy = 0.25;
    r.seconds = 12.5;
    file.write(r);
    file.write(EvaluationReport{20, 2.5, 0.75, 1.5, 6});
  }
  EXPECT_EQ(read_file(path), kFirstLine +
                                 "{\"step\":10,\"epoch\":1.5,\"cross_entropy\":2,\"decay_term\":0.416,"
                                 "\"train_accuracy\":0.25,\"lr\":0.1,\"images_per_second\":5012.34,"
                                 "\"seconds\":12.5,\"compute_ms\":null,\"kind\":\"step\"}\n"
                                 "{\"step\":20,\"epoch\":2.5,\"weights\":\"ema\",\"test_accuracy\":0.75,"
                                 "\"test_cross_entropy\":1.5,\"views\":6,\"kind\":\"evaluation\"}\n");
}

TEST(MetricsFile, WarnsOnceWhenItCannotWriteAndLeavesNoLineTorn) {
  const TempDir folder;
  const std::string path = folder / "metrics.jsonl";
  MetricsFile file(path, 0, Log(0));
  file.write(report_at(10));
  const std::string first = read_file(path);
  testing::internal::CaptureStderr();
  {
    const FileSizeLimit limit(first.size() + 7);
    for (const std::uint64_t step : {20, 30, 40}) file.write(report_at(step));
  }
  const std::string warnings = testing::internal::GetCapturedStderr();
  file.write(report_at(50));
  EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 1) << warnings;
  EXPECT_TRUE(warnings.starts_with("warning: cannot write " + path + ": ")) << warnings;
  // The part of step 20 that fitted is cut off again.
  const std::string text = read_file(path);
  EXPECT_TRUE(text.starts_with(first + "{\"step\":50,")) << text;
  { const MetricsFile again(path, 50); }
  EXPECT_EQ(std::ranges::count(read_file(path), '\n'), 3);
}

TEST(MetricsFile, WritesNumbersThatJsonKnows) {
  const TempDir folder;
  StepReport r = report_at(10);
  r.cross_entropy = std::numeric_limits<double>::quiet_NaN();
  MetricsFile(folder / "metrics.jsonl", 0).write(r);
  EXPECT_TRUE(contains(read_file(folder / "metrics.jsonl"), "\"cross_entropy\":null,\"decay_term\":0.416,"));
}

comm::PushCounts some_pushes() {
  comm::PushCounts pushes;
  pushes.applied = {3, 0};
  pushes.dropped = {0, 1};
  pushes.worker_bytes = {3 << 20, 1 << 20};
  pushes.server_bytes = {4 << 20};
  return pushes;
}

TEST(MetricsFile, TellsWhatServersMadeOfThePushes) {
  const TempDir folder;
  StepReport r = report_at(10);
  r.pushes = some_pushes();
  MetricsFile(folder / "first.jsonl", 0).write(r);
  EXPECT_TRUE(contains(read_file(folder / "first.jsonl"),
                       ",\"pushes\":{\"applied\":[3,0],\"dropped\":[0,1],\"worker_bytes\":[3145728,1048576],"
                       "\"server_bytes\":[4194304]},"));
  // Of twenty nineteen are of staleness 2 or less, and half of 1 or less.
  r.pushes->staleness = {0, 11, 8, 0, 1, 0, 0};
  r.pushes->most_stale = 4;
  MetricsFile(folder / "async.jsonl", 0).write(r);
  EXPECT_TRUE(contains(read_file(folder / "async.jsonl"),
                       ",\"staleness\":{\"p50\":1,\"p95\":2,\"max\":4,\"histogram\":[0,11,8,0,1]}},"));
}

TEST(PushesText, NamesDropsAndStalenessWhereThereAreAny) {
  comm::PushCounts pushes = some_pushes();
  EXPECT_EQ(pushes_text(pushes),
            "3 applied (3, 0 by worker), 1 late ones dropped, 25.0 % (0, 1 by worker); 3.0 MiB of pushes and "
            "answers for the busiest worker, 4.0 for the busiest server");
  pushes.dropped = {0, 0};
  pushes.staleness = {1, 1, 1};
  pushes.most_stale = 2;
  EXPECT_EQ(pushes_text(pushes),
            "3 applied (3, 0 by worker); staleness: 50 % at most 1, 95 % at most 2, maximum 2; 3.0 MiB of "
            "pushes and answers for the busiest worker, 4.0 for the busiest server");
}

TEST(PushesText, NamesWorkersThatAreNearlyAlwaysLate) {
  comm::PushCounts pushes = some_pushes();
  pushes.applied = {30, 3, 25, 2};
  pushes.dropped = {0, 17, 5, 17};  // a quarter of the mean of 15 is 3.75; of the last one little is known
  EXPECT_TRUE(contains(pushes_text(pushes), "; nearly always late: worker 1, whose samples"));
  pushes.applied[1] = 4;
  EXPECT_FALSE(contains(pushes_text(pushes), "always late"));
}

TEST(MetricsFile, SaysWhereItCannotWriteAndWhy) {
  const TempDir folder;
  expect_error(ErrorKind::io, {folder / "none/metrics.jsonl", "No such file"},
               [&] { MetricsFile(folder / "none/metrics.jsonl", 0); });
  std::filesystem::create_directory(folder / "metrics.jsonl");
  expect_error(ErrorKind::io, {"cannot read", folder / "metrics.jsonl", "Is a directory"},
               [&] { MetricsFile(folder / "metrics.jsonl", 0); });
  std::filesystem::create_symlink("circle", folder / "circle");  // root may read whatever has a mode
  expect_error(ErrorKind::io, {"cannot read", folder / "circle", "symbolic link"},
               [&] { MetricsFile(folder / "circle", 0); });
}

TEST(MetricsFile, WritesIntoNoOtherFileAndWaitsForNothing) {
  const TempDir folder;
  const std::string path = folder / "metrics.jsonl", other = folder / "other";
  for (const std::string& target : {other, std::string("/dev/zero")}) {
    write_file(other, "{\"step\":900}\nmine\n");
    std::filesystem::create_symlink(target, path);
    expect_error(ErrorKind::io, {path, "symbolic link"}, [&] { MetricsFile file(path, 7, Log(1)); });
    EXPECT_EQ(read_file(other), "{\"step\":900}\nmine\n");
    std::filesystem::remove(path);
  }
  ASSERT_EQ(mkfifo(path.c_str(), 0666), 0);
  expect_error(ErrorKind::io, {path, "pipe"}, [&] { MetricsFile file(path, 7, Log(1)); });
}

TEST(MetricsFile, DropsALineThatNeverEnds) {
  const TempDir folder;
  const std::string path = folder / "metrics.jsonl", good = "{\"step\":3,\"x\":1}\n";
  write_file(path,
             good + "{\"step\":4," + std::string(1 << 20, ' ') + "}\n" + good + std::string(1 << 20, '{'));
  { const MetricsFile file(path, 7, Log(1)); }
  EXPECT_EQ(read_file(path), good + good);
}

TEST(MetricsFile, IsLeftAsItWasWhenItCannotBeCutBack) {
  const TempDir folder;
  const std::string path = folder / "metrics.jsonl";
  {
    MetricsFile file(path, 0);
    for (const std::uint64_t step : {10, 20}) file.write(report_at(step));
  }
  const std::string before = read_file(path);
  {
    const FileSizeLimit limit(100);
    expect_error(ErrorKind::io, {path}, [&] { MetricsFile(path, 10); });
  }
  EXPECT_EQ(read_file(path), before);
  EXPECT_EQ(folder.files(), 1u);
}

}  // namespace
}  // namespace cifar_mpi::report
