#include "page/run.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "cifar_mpi/report/timeline_file.hpp"
#include "page/page.hpp"
#include "page/sections.hpp"
#include "report/summary_history.hpp"
#include "support/errors.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi::page {
namespace {

namespace fs = std::filesystem;

std::string report_line(int step, double seconds, int speed = 100) {
  return "{\"step\":" + std::to_string(step) + ",\"epoch\":" + std::to_string(step / 100.0) +
         ",\"cross_entropy\":2,\"decay_term\":1,\"images_per_second\":" + std::to_string(speed) +
         ",\"seconds\":" + std::to_string(seconds) + "}\n";
}

bool mentions(const std::vector<std::string>& texts, const std::string& part) {
  return std::any_of(texts.begin(), texts.end(),
                     [&](const std::string& text) { return text.find(part) != std::string::npos; });
}

TEST(LoadRun, RefusesWhatIsNoRunDirectory) {
  const TempDir folder;
  expect_error(ErrorKind::checkpoint, {folder / "none does not exist", "--run-dir"},
               [&] { load_run(folder / "none"); });
  write_file(folder / "file", "");
  expect_error(ErrorKind::checkpoint, {folder / "file: it is not a folder"},
               [&] { load_run(folder / "file"); });
  expect_error(ErrorKind::checkpoint, {folder.path(), "is not a run directory", "metrics.jsonl"},
               [&] { load_run(folder.path()); });
}

TEST(LoadRun, AddsTheTimesOfAllStartsUp) {
  const TempDir folder;
  write_file(folder / "metrics.jsonl",
             report_line(100, 10) + report_line(200, 20) + report_line(300, 8) + report_line(400, 16));
  const page::Run run = load_run(folder.path() + "/");
  EXPECT_EQ(run.dir, folder.path());
  EXPECT_EQ(run.seconds, (std::vector<double>{10, 20, 28, 36}));
  EXPECT_EQ(seconds_at(run, 50), 5.0);
  EXPECT_EQ(seconds_at(run, 250), 24.0);
  EXPECT_EQ(seconds_at(run, 1000), 36.0);
  EXPECT_DOUBLE_EQ(run.steps_per_epoch, 100.0);
  EXPECT_TRUE(run.problems.empty());
}

TEST(LoadRun, DoesNotBelieveARecordThatIsNone) {
  const TempDir folder;
  write_file(folder / "metrics.jsonl", "");
  write_file(folder / "exit", "hello\n");
  write_file(folder / "lock", "");
  const page::Run run = load_run(folder.path());
  EXPECT_EQ(run.state_text, "unknown");
  EXPECT_TRUE(mentions(run.problems, "exit is left out: it does not begin with an exit code"));
  EXPECT_TRUE(mentions(run.problems, "lock is left out: it names no holder"));
  EXPECT_TRUE(mentions(run.problems, "metrics.jsonl reports a step"));
}

TEST(LoadRun, ShowsWhatIsThereBesideWhatIsDamaged) {
  const TempDir folder;
  fs::create_directory(folder / "checkpoints");
  write_file(folder / "checkpoints/step_000000100.h5", "no HDF5");
  write_file(folder / "metrics.jsonl", report_line(100, 10) + "garbage\n");
  fs::create_symlink("/etc/passwd", folder / "config.toml");
  for (const char* name : {"evaluation.h5", "summaries.h5", "timeline.h5"})
    write_file(folder / name, "no HDF5");
  const page::Run run = load_run(folder.path());
  EXPECT_EQ(run.metrics.steps.size(), 1u);
  EXPECT_TRUE(run.configuration.empty());
  EXPECT_FALSE(run.checkpoint);
  EXPECT_TRUE(mentions(run.problems, "metrics.jsonl, line 2, is left out"));
  EXPECT_TRUE(mentions(run.problems, "step_000000100.h5"));
  EXPECT_TRUE(mentions(run.problems, "config.toml is left out"));
  for (const char* name : {"evaluation.h5", "summaries.h5", "timeline.h5"})
    EXPECT_TRUE(mentions(run.problems, name)) << name;
  EXPECT_EQ(run.problems.size(), 6u);
  EXPECT_FALSE(run.evaluation || run.summaries || run.timeline);
}

TEST(LoadRun, FollowsNoLinkToWhatARunLeaves) {
  const TempDir folder, elsewhere;
  write_file(folder / "metrics.jsonl", report_line(100, 10));
  report::Timeline timeline;
  timeline.hosts = {"a"};
  timeline.clock_uncertainty_ns = {0};
  report::write_timeline(elsewhere / "timeline.h5", timeline);
  report::SummaryHistory().write(elsewhere / "summaries.h5");
  run::EvaluationFile evaluation;
  evaluation.weights = "ema";
  evaluation.image = {1, 1, 1};
  evaluation.label_names = {"cat", "dog"};
  evaluation.confusion = {1, 2, 3, 4};
  run::write_evaluation(elsewhere / "evaluation.h5", evaluation);
  for (const char* name : {"evaluation.h5", "summaries.h5", "timeline.h5"}) {
    fs::copy_file(elsewhere / name, folder / name);
    EXPECT_TRUE(load_run(folder.path()).problems.empty()) << load_run(folder.path()).problems.front();
    fs::remove(folder / name);
    fs::create_symlink(elsewhere / name, folder / name);
    EXPECT_TRUE(mentions(load_run(folder.path()).problems,
                         (folder / name) + "': it is a symbolic link, which is not followed"));
    fs::remove(folder / name);
  }
  fs::create_symlink(elsewhere / "none", folder / "summaries.h5");
  EXPECT_TRUE(mentions(load_run(folder.path()).problems, "summaries.h5': it is a symbolic link"));
}

TEST(LoadRun, KeepsTheBeginningsOfVeryLongTexts) {
  const TempDir folder;
  fs::create_directory(folder / "checkpoints");
  const std::string text(1'000'000, '"');
  run::Checkpoint checkpoint;
  for (const optim::StateRow& row : optim::state_rows(checkpoint.optimizer.kind))
    checkpoint.state[row.role].push_back({"conv1/weights", {0}, "none", {}});
  checkpoint.progress.step = 1;
  checkpoint.progress.identity = {{"model", text}};
  checkpoint.progress.resolved.assign(1000, {"threads", "1"});
  checkpoint.provenance.backend = checkpoint.provenance.initialized_from = checkpoint.provenance.changes =
      text;
  checkpoint.provenance.kernels = text + text;
  run::write_checkpoint(folder / "checkpoints/step_000000001.h5", checkpoint);
  report::Timeline timeline;
  timeline.hosts = {text};
  timeline.clock_uncertainty_ns = {0};
  timeline.collective = text;
  timeline.tasks = {{"work", 0, engine::TaskKind::work, 0, {}}};
  timeline.steps = {{1, {{0, 90, {{0, 0, 50}}, 0}}}};
  report::write_timeline(folder / "timeline.h5", timeline);
  std::string metrics = report_line(1, 1);
  for (int i = 0; i < 200; ++i)
    metrics += "{\"event\":\"fault\",\"step\":1,\"text\":\"" + std::string(60'000, '&') + "\"}\n";
  write_file(folder / "metrics.jsonl", metrics);
  std::vector<page::Run> runs;
  runs.push_back(load_run(folder.path()));
  EXPECT_TRUE(runs[0].checkpoint && runs[0].timeline);
  runs[0].verdict = verdict_of(runs[0], nullptr);
  const std::string page = page_html(runs, folder / "report.html");
  EXPECT_TRUE(contains(page, "&quot;…</dd>"));
  EXPECT_LT(page.size(), 12'000'000u);  // 6 of them are the kernels, 4 the events
}

TEST(LoadRun, SaysThatThereAreNoMetrics) {
  const TempDir folder;
  write_file(folder / "exit", "7 rank 2 was lost\n");
  const page::Run run = load_run(folder.path());
  EXPECT_EQ(run.state_text, "the last start ended with code 7: rank 2 was lost");
  EXPECT_TRUE(mentions(run.problems, "there is no " + folder.path() + "/metrics.jsonl"));
}

TEST(LoadRun, MissesNothingInARecording) {
  const TempDir folder;
  write_file(folder / "timeline.h5", "");  // damaged: the one problem
  const page::Run run = load_run(folder.path());
  EXPECT_EQ(run.state_text, "a recording of cifar_mpi_bench ways, not a training run");
  EXPECT_EQ(run.problems.size(), 1u);
  EXPECT_FALSE(mentions(run.problems, "metrics.jsonl"));
}

TEST(LoadRun, SeesARunThatIsGoingOn) {
  const TempDir folder;
  write_file(folder / "metrics.jsonl", "");
  EXPECT_FALSE(load_run(folder.path()).state_text.starts_with("a run is active here"));
  run::LockHolder holder = run::this_process();
  write_file(folder / "lock", run::to_text(holder));
  page::Run run = load_run(folder.path());
  EXPECT_TRUE(run.state_text.starts_with("a run is active here, process ")) << run.state_text;
  fs::last_write_time(folder / "lock", fs::file_time_type::clock::now() - std::chrono::hours(1));
  holder.host = "elsewhere";
  write_file(folder / "lock", run::to_text(holder));
  fs::last_write_time(folder / "lock", fs::file_time_type::clock::now() - std::chrono::hours(1));
  run = load_run(folder.path());
  EXPECT_TRUE(run.state_text.starts_with("the last start left its lock: ")) << run.state_text;
}

TEST(NameRuns, TellsRunsApartByTheEndsOfTheirPaths) {
  std::vector<page::Run> runs(3);
  runs[0].dir = "a/x";
  runs[1].dir = "b/x";
  runs[2].dir = "b/y/";
  name_runs(runs);
  EXPECT_EQ(runs[0].name, "a/x");
  EXPECT_EQ(runs[1].name, "b/x");
  runs[2].dir = ".";
  name_runs(runs);
  EXPECT_EQ(runs[2].name,
            (fs::current_path().parent_path().filename() / fs::current_path().filename()).string());
  runs[1].dir = "a/x";
  name_runs(runs);
  EXPECT_NE(runs[0].name, runs[1].name);
}

TEST(Marks, StandWhereSomethingHappened) {
  const TempDir folder;
  write_file(folder / "metrics.jsonl",
             "{\"event\":\"start\",\"step\":0,\"ranks\":2}\n" + report_line(100, 10) +
                 "{\"event\":\"stop\",\"step\":100,\"text\":\"stopped on request\"}\n" +
                 "{\"event\":\"resume\",\"step\":100,\"ranks\":4,\"text\":\"75 stopped on request\"}\n" +
                 report_line(200, 10) + "{\"event\":\"resume\",\"step\":200,\"ranks\":4,\"reached\":270}\n" +
                 report_line(300, 10) +
                 "{\"event\":\"resume\",\"step\":300,\"ranks\":4,\"text\":\"7 rank 2 was lost\"}\n");
  std::vector<page::Run> runs(1);
  const page::Run& run = runs[0] = load_run(folder.path());
  EXPECT_TRUE(run.problems.empty()) << run.problems.front();
  const std::vector<Mark> marks = marks_of(run);
  ASSERT_EQ(marks.size(), 3u);
  EXPECT_EQ(marks[0].letter, "resume");
  EXPECT_EQ(marks[0].x, (AxisValues{100, 1, 10}));
  EXPECT_EQ(marks[1].letter, "fault");
  EXPECT_TRUE(contains(marks[1].text, "killed"));
  EXPECT_EQ(marks[2].text, "the run failed after this step: 7 rank 2 was lost");
  const std::string table = events_html(runs);
  EXPECT_TRUE(contains(table, "it had reached step 270, 70 steps are repeated"));
}

TEST(Marks, HaveTheColoursOfTheirRunsWhereThereAreSeveral) {
  std::vector<page::Run> runs(2);
  for (std::size_t r = 0; r < 2; ++r) {
    const TempDir folder;
    write_file(folder / "metrics.jsonl",
               report_line(100, 10) + "{\"event\":\"resume\",\"step\":100,\"ranks\":" +
                   std::to_string(r + 2) + ",\"text\":\"75 stopped\"}\n" + report_line(200, 10));
    runs[r] = load_run(folder.path());
    runs[r].name = r == 0 ? "a" : "b";
  }
  const std::vector<Chart> charts = curves(runs);
  ASSERT_FALSE(charts.empty());
  for (const Chart& chart : charts) {
    ASSERT_EQ(chart.marks.size(), 2u) << chart.id;
    EXPECT_EQ(chart.marks[0].text, "a: resumed with 2 ranks");
    EXPECT_EQ(chart.marks[1].text, "b: resumed with 3 ranks");
    EXPECT_EQ(chart.marks[1].style, chart.series[1].style);
    const std::string html = figure_html(chart);
    EXPECT_TRUE(contains(html, "class=\"mark s1\""));
    EXPECT_TRUE(contains(html, "class=\"flag s1 "));
  }
  runs.pop_back();
  EXPECT_EQ(curves(runs).at(0).marks.at(0).style, -1);
}

TEST(KeyFacts, SayHowFarHowGoodAndHowFast) {
  const TempDir folder;
  write_file(folder / "exit", "0 done\n");
  write_file(folder / "metrics.jsonl", "{\"event\":\"start\",\"step\":0,\"ranks\":2,\"total_steps\":300}\n" +
                                           report_line(100, 90) + "{\"step\":100,\"test_accuracy\":0.5}\n" +
                                           report_line(200, 180) + "{\"step\":200,\"test_accuracy\":0.25}\n");
  const Facts expected{{"state", "the last start ended with code 0: done"},
                       {"progress", "step 200 of 300, epoch 2.00"},
                       {"loss", "3.00 (cross-entropy 2.00 + decay term 1.00)"},
                       {"test accuracy", "25.00 % at step 200; the best was 50.00 % at step 100"},
                       {"speed", "100 images/s over 2 ranks; 3 min 0 s of training"}};
  EXPECT_EQ(key_facts(load_run(folder.path())), expected);
}

TEST(KeyFacts, HaveTheSpeedOfTheLastStart) {
  const TempDir folder;
  std::string lines = "{\"event\":\"start\",\"step\":0,\"ranks\":2}\n";
  for (int step = 10; step <= 50; step += 10) lines += report_line(step, step, 500);
  lines += "{\"event\":\"resume\",\"step\":50,\"ranks\":2}\n" + report_line(60, 60, 100);
  write_file(folder / "metrics.jsonl", lines);
  EXPECT_EQ(recent_speed(load_run(folder.path())), 100.0);
}

TEST(KeyFacts, SayWhatServersMadeOfThePushes) {
  const TempDir folder;
  write_file(folder / "metrics.jsonl",
             "{\"step\":5,\"cross_entropy\":1,\"pushes\":{\"applied\":[3,2],\"dropped\":[0,5],"
             "\"worker_bytes\":[1048576,0],\"server_bytes\":[2097152]}}\n");
  const Facts facts = key_facts(load_run(folder.path()));
  EXPECT_EQ(facts.back().first, "pushes");
  EXPECT_EQ(facts.back().second,
            "5 applied (3, 2 by worker), 5 late ones dropped, 50.0 % (0, 5 by worker); 1.0 MiB of pushes and "
            "answers for the busiest worker, 2.0 for the busiest server");
}

TEST(Tiles, HaveTheSpeedThatItsCurvesLegendHas) {
  const TempDir folder;
  std::string lines;
  for (int i = 1; i <= 20; ++i) lines += report_line(100 * i, 10 * i, i < 11 ? 100 : i < 20 ? 250 : 10);
  write_file(folder / "metrics.jsonl", lines);
  std::vector<page::Run> runs(1);
  const page::Run& run = runs[0] = load_run(folder.path());
  const Facts tiles = tiles_of(run);
  EXPECT_NE(std::find(tiles.begin(), tiles.end(), Facts::value_type("images per second", "250")),
            tiles.end());
  for (const Chart& chart : curves(runs)) {
    if (chart.id != "speed") continue;
    EXPECT_TRUE(contains(figure_html(chart), "<b>250 /s</b>")) << "not that of the last line";
  }
}

}  // namespace
}  // namespace cifar_mpi::page
