#include "report/metrics_reader.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>

#include "support/errors.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi::report {
namespace {

const std::string kHead = "{\"format\":\"cifar_mpi metrics\",\"version\":1}\n";

Metrics read(const std::string& content) {
  const TempDir folder;
  write_file(folder / "metrics.jsonl", content);
  return read_metrics(folder / "metrics.jsonl");
}

TEST(MetricsReader, ReadsWhatMetricsFileWrites) {
  const TempDir folder;
  const std::string path = folder / "metrics.jsonl";
  StepReport step;
  step.step = 10;
  step.epoch = 0.5;
  step.cross_entropy = 2.25;
  step.decay_term = std::nan("");
  step.compute_ms_min = 1.0;
  step.compute_ms_median = 2.0;
  step.compute_ms_max = 4.0;
  step.pushes.emplace();
  const std::vector<std::uint64_t> hundred(100, 7);  // workers
  step.pushes->applied = step.pushes->dropped = step.pushes->worker_bytes = hundred;
  step.pushes->server_bytes = {9, 8};
  step.pushes->staleness = {0, 5, 0, 1};
  step.pushes->most_stale = 300;
  RunEvent event;
  event.kind = RunEventKind::resume;
  event.step = 8;
  event.text = "7 rank \"3\" was lost\n";
  event.ranks = 4;
  event.hosts = "a x 4";
  event.global_batch = 512;
  event.reached = 19;
  {
    MetricsFile file(path, 0);
    file.write(event);
    file.write(step);
    step.step = 12;
    file.write(step);
    file.write(EvaluationReport{12, 0.5, 0.75, 1.5, 2});
  }
  const Metrics metrics = read_metrics(path);
  EXPECT_TRUE(metrics.problems.empty()) << metrics.problems.front();
  ASSERT_EQ(metrics.steps.size(), 2u);
  EXPECT_EQ(metrics.steps[0].step, 10u);
  EXPECT_FALSE(metrics.steps[0].pushes);
  ASSERT_TRUE(metrics.steps[1].pushes);
  const comm::PushCounts& pushes = *metrics.steps[1].pushes;
  for (const auto* const counts : {&pushes.applied, &pushes.dropped, &pushes.worker_bytes})
    EXPECT_EQ(*counts, hundred);
  EXPECT_EQ(pushes.server_bytes, step.pushes->server_bytes);
  EXPECT_EQ(pushes.staleness, step.pushes->staleness);
  EXPECT_EQ(pushes.most_stale, 300u);
  EXPECT_EQ(metrics.steps[0].cross_entropy, 2.25);
  EXPECT_TRUE(std::isnan(metrics.steps[0].decay_term));
  EXPECT_EQ(metrics.steps[0].compute_ms_max, 4.0);
  ASSERT_EQ(metrics.evaluations.size(), 1u);
  EXPECT_EQ(metrics.evaluations[0].test_accuracy, 0.75);
  EXPECT_EQ(metrics.evaluations[0].views, 2);
  ASSERT_EQ(metrics.events.size(), 1u);
  EXPECT_EQ(metrics.events[0].kind, RunEventKind::resume);
  EXPECT_EQ(metrics.events[0].text, event.text);
  EXPECT_EQ(metrics.events[0].hosts, "a x 4");
  EXPECT_EQ(metrics.events[0].global_batch, 512u);
  EXPECT_EQ(metrics.events[0].reached, 19u);
}

TEST(MetricsReader, ReadsRunsOfBeforeTheFirstLineSaidAVersion) {
  const Metrics metrics = read("{\"step\":10,\"epoch\":1.5,\"cross_entropy\":2,\"compute_ms\":null}\n");
  EXPECT_TRUE(metrics.problems.empty());
  ASSERT_EQ(metrics.steps.size(), 1u);
  EXPECT_TRUE(std::isnan(metrics.steps[0].compute_ms_max));
}

TEST(MetricsReader, NamesTheLinesThatItLeavesOut) {
  const std::string good = ",\"cross_entropy\":2}\n";
  const Metrics metrics =
      read(kHead + "{\"step\":10" + good + "garbage\n" + "{\"step\":9" + good + "{\"step\":1.5" + good +
           "{\"step\":11}\n" + "{\"event\":\"party\",\"step\":11}\n" + "{\"step\":20" + good +
           "{\"step\":30,\"cro");
  ASSERT_EQ(metrics.steps.size(), 2u);
  EXPECT_EQ(metrics.steps[1].step, 20u);
  const std::vector<std::string> expected{
      "line 3, is left out: expected {",      "line 4, is left out: step 9 follows",
      "line 5, is left out: it has no step",  "line 6, is left out: it is neither",
      "line 7, is left out: it has an event", "line 9, is left out: the file ends"};
  ASSERT_EQ(metrics.problems.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(contains(metrics.problems[i], expected[i]));
}

TEST(MetricsReader, SaysShortlyWhatIsWrongWithAFileOfSomebodyElse) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += "no line of ours\n";
  const Metrics metrics = read(text);
  ASSERT_EQ(metrics.problems.size(), 12u);
  EXPECT_TRUE(contains(metrics.problems[10], "lines after line 1000 are not read"));
  EXPECT_TRUE(contains(metrics.problems[11], "990 more lines"));
}

TEST(MetricsReader, KeepsNoFiguresThatCannotBeDrawn) {
  const Metrics metrics = read("{\"step\":1,\"cross_entropy\":1e300,\"lr\":\"much\"}\n");
  ASSERT_EQ(metrics.steps.size(), 1u);
  EXPECT_TRUE(std::isnan(metrics.steps[0].cross_entropy));
  EXPECT_TRUE(std::isnan(metrics.steps[0].learning_rate));
}

TEST(MetricsReader, KeepsNoPushesThatAreNotOfWorkersAndServers) {
  const auto has_pushes = [](const std::string& applied, const std::string& bytes) {
    const Metrics metrics =
        read("{\"step\":1,\"cross_entropy\":1,\"pushes\":{\"applied\":" + applied +
             ",\"dropped\":[0,1],\"worker_bytes\":[1,1],\"server_bytes\":" + bytes + "}}\n");
    EXPECT_EQ(metrics.steps.size(), 1u);
    return metrics.steps.back().pushes.has_value();
  };
  EXPECT_TRUE(has_pushes("[1,2]", "[3]"));
  for (const char* applied : {"[1]", "[1,2,3]", "[]", "[1,-2]", "[1,1e300]", "\"1\"", "{\"0\":1,\"1\":2}"})
    EXPECT_FALSE(has_pushes(applied, "[3]")) << applied;
  EXPECT_FALSE(has_pushes("[1,2]", "[]"));
}

TEST(MetricsReader, RefusesWhatItCannotRead) {
  const TempDir folder;
  const std::string path = folder / "metrics.jsonl";
  expect_error(ErrorKind::io, {"there is no " + path}, [&] { read_metrics(path); });
  write_file(path, "{\"format\":\"cifar_mpi metrics\",\"version\":2}\n{\"step\":1}\n");
  expect_error(ErrorKind::data, {path, "version 2", "reads 1"}, [&] { read_metrics(path); });
  std::filesystem::remove(path);
  std::filesystem::create_symlink("/etc/passwd", path);
  expect_error(ErrorKind::io, {path, "symbolic link"}, [&] { read_metrics(path); });
  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0666), 0);
  expect_error(ErrorKind::io, {path, "pipe"}, [&] { read_metrics(path); });
}

}  // namespace
}  // namespace cifar_mpi::report
