#include "cifar_mpi/page/report.hpp"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <ctime>
#include <filesystem>

#include "page/sections.hpp"
#include "support/errors.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi::page {
namespace {

namespace fs = std::filesystem;

std::string long_metrics(int lines) {
  std::string text = "{\"format\":\"cifar_mpi metrics\",\"version\":1}\n";
  for (int i = 1; i <= lines; ++i) {
    text += fmt::format(
        "{{\"step\":{},\"epoch\":{:.6f},\"cross_entropy\":{:.9f},\"decay_term\":{:.9f},\"train_accuracy\":{:."
        "6f},\"lr\":0.1,\"images_per_second\":{:.6f},"
        "\"seconds\":{:.6f},\"compute_ms\":{{\"min\":{:.6f},\"median\":40.5,\"max\":51.123456}}}}\n",
        10 * i, i * 0.0512, 2.0 + std::sin(0.37 * i), 1.0 / i, 0.5 + 0.4 * std::cos(0.011 * i),
        5000.0 + 100.0 * std::sin(1.7 * i), 0.5 * i, 38.0 + 0.1 * (i % 9));
    if (i % 20 == 0) text += fmt::format("{{\"step\":{},\"test_accuracy\":{:.4f}}}\n", 10 * i, 1.0 - 1.0 / i);
  }
  return text;
}

/// Of the processor, which other programs may use too.
std::clock_t clocks_of_report(const TempDir& folder, int lines) {
  fs::create_directories(folder / "run");
  write_file(folder / "run/metrics.jsonl", long_metrics(lines));
  const std::clock_t begin = std::clock();
  testing::internal::CaptureStdout();
  report_runs({{folder / "run"}, "", ""}, Log());
  testing::internal::GetCapturedStdout();
  return std::clock() - begin;
}

TEST(Report, OfAHundredThousandLinesIsSmallAndTakesItsTimeByTheLine) {
  const TempDir folder;
  std::clock_t eighth = 0, whole = 0;
  for (int time = 0; time < 5 && whole >= 2 * 8 * eighth;
       ++time) {  // other work may slow one of the two down
    eighth = clocks_of_report(folder, 12'500);
    whole = clocks_of_report(folder, 100'000);
  }
  EXPECT_LT(whole, 2 * 8 * eighth) << "of " << CLOCKS_PER_SEC << " in a second";
  EXPECT_LT(fs::file_size(folder / "run/report.html"), 3u << 20);
  std::vector<page::Run> runs(1);
  runs[0] = load_run(folder / "run");
  const std::vector<Chart> charts = curves(runs);
  ASSERT_EQ(charts.size(), 5u);
  for (const Chart& chart : charts) {
    for (const Series& series : chart.series)
      EXPECT_EQ(series.points.size(), 320u) << chart.id << ' ' << series.name;
  }
  EXPECT_GT(fs::file_size(folder / "run/report.html"), 100u << 10);
}

TEST(Report, ReplacesAPageAndNothingElse) {
  const TempDir folder;
  fs::create_directory(folder / "run");
  write_file(folder / "run/metrics.jsonl", long_metrics(5));
  const std::string metrics = read_file(folder / "run/metrics.jsonl");
  const auto write = [&](const std::string& page) {
    testing::internal::CaptureStdout();
    report_runs({{folder / "run"}, page, ""}, Log());
    testing::internal::GetCapturedStdout();
  };
  write("");
  write("");
  expect_error(ErrorKind::usage, {folder / "run/metrics.jsonl", "is not a page of cifar_mpi_report"}, [&] {
    report_runs({{folder / "run"}, folder / "run/metrics.jsonl", ""}, Log());
  });
  EXPECT_EQ(read_file(folder / "run/metrics.jsonl"), metrics);
  write_file(folder / "empty.html", "");
  write(folder / "empty.html");
  EXPECT_GT(fs::file_size(folder / "empty.html"), 1000u);
}

// browser_test.py checks that the hashes fit, and that the page works with them.
TEST(Report, LetsItsOwnStyleAndScriptRunAndNothingElse) {
  const TempDir folder;
  write_file(folder / "metrics.jsonl", long_metrics(50));
  testing::internal::CaptureStdout();
  report_runs({{folder.path()}, "", ""}, Log());
  testing::internal::GetCapturedStdout();
  const std::string page = read_file(folder / "report.html");
  const std::size_t begin = page.find("Content-Security-Policy"), end = page.find('>', begin);
  ASSERT_NE(begin, std::string::npos);
  const std::string policy = page.substr(begin, end - begin);
  for (const char* part : {"default-src 'none'", "base-uri 'none'", "form-action 'none'",
                           "style-src 'sha256-", "script-src 'sha256-", "img-src data:;"})
    EXPECT_TRUE(contains(policy, part));
  EXPECT_FALSE(contains(policy, "unsafe"));
  EXPECT_LT(end, page.find("<style"));
  for (const char* inside : {" style=", " onclick=", "javascript:"}) EXPECT_FALSE(contains(page, inside));
}

TEST(Report, DrawsSeveralRunsOverEachOther) {
  const TempDir folder;
  std::vector<std::string> dirs;
  for (const char* name : {"one", "two", "three"}) {
    dirs.push_back(folder / name);
    fs::create_directory(dirs.back());
    write_file(dirs.back() + "/metrics.jsonl", long_metrics(50));
  }
  testing::internal::CaptureStdout();
  report_runs({dirs, folder / "all.html", ""}, Log());
  const std::string said = testing::internal::GetCapturedStdout();
  EXPECT_TRUE(contains(said, "two:\n"));
  const std::string page = read_file(folder / "all.html");
  EXPECT_TRUE(contains(page, "<h1>one and two and three</h1>"));
  EXPECT_TRUE(contains(page, "Loss: cross-entropy over step, 3 lines. one: from"));
  EXPECT_FALSE(fs::exists(folder / "one/report.html"));
}

TEST(Report, ComparesSeveralRunsInATable) {
  const TempDir folder;
  const auto make = [&](const std::string& name, const std::string& config, int lines) {
    fs::create_directory(folder / name);
    write_file(folder / name + "/config.toml", "# Run\nrun-dir=\"runs/" + name + "\"\n" + config);
    write_file(folder / name + "/metrics.jsonl",
               long_metrics(lines) + "{\"event\":\"end\",\"step\":400,\"time\":\"\"}\n");
  };
  make("a", "lr=0.1\nmodel='tutorial'\nseed=1\n", 40);
  make("größer", "lr=0.05\nmodel=\"tutorial\"\nseed=1\n# steps=9\ntag=\"<b>\"\n", 20);
  make("bare", "", 0);
  testing::internal::CaptureStdout();
  report_runs({{folder / "a", folder / "größer", folder / "bare"}, folder / "all.html", ""}, Log());
  const std::string said = testing::internal::GetCapturedStdout();
  const std::string table =
      "run       lr  tag  ranks  last step  accuracy     best  images/s  seconds\n"
      "a        0.1    -      -        400   97.50 %  97.50 %      5007       20\n"
      "größer  0.05  <b>      -        200   95.00 %  95.00 %      5036       10\n"
      "bare       -    -      -          -         -        -         -        -\n";
  EXPECT_TRUE(contains(said, table));
  const std::string page = read_file(folder / "all.html");
  EXPECT_TRUE(contains(page, "<th scope=\"row\">größer</th><td>0.05</td><td>&lt;b&gt;</td>"));
  report_runs({{folder / "a"}, folder / "all.html", ""}, Log());
  EXPECT_FALSE(contains(read_file(folder / "all.html"), "id=\"comparison\""));
}

TEST(Report, NeedsNothingFromElsewhereAndLetsNoNameBecomeMarkup) {
  const TempDir folder;
  const std::string dir = folder / "<img src=x onerror=alert(1)>";
  fs::create_directory(dir);
  const std::string nasty = "</script><script>alert(2)</script>";
  write_file(dir + "/metrics.jsonl", long_metrics(3) +
                                         "{\"event\":\"resume\",\"step\":31,\"ranks\":1,\"hosts\":\"" +
                                         nasty + "\",\"text\":\"7 " + nasty + "\"}\n");
  write_file(dir + "/config.toml", "model = \"" + nasty + "\"\n");
  write_file(dir + "/exit", "1 " + nasty + "\n");
  testing::internal::CaptureStdout();
  report_runs({{dir}, folder / "page.html", ""}, Log());
  testing::internal::GetCapturedStdout();
  const std::string page = read_file(folder / "page.html");
  EXPECT_FALSE(contains(page, "<img src=x"));
  EXPECT_FALSE(contains(page, "<script>alert"));
  EXPECT_TRUE(contains(page, "&lt;script&gt;alert(2)"));
  for (const char* part : {"http://", "https://", "<link", "@import", "url("}) {
    std::string rest = page;
    for (const std::string harmless : {"http://www.w3.org/2000/svg", "https://ui.perfetto.dev"}) {
      for (std::size_t at = 0; (at = rest.find(harmless)) != std::string::npos;)
        rest.erase(at, harmless.size());
    }
    EXPECT_FALSE(contains(rest, part));
  }
}

TEST(Report, TellsNothingBeforeItRefuses) {
  const TempDir folder;
  write_file(folder / "exit", "0 done\n");
  const std::string run = folder.path(), none = folder / "none";
  const auto refused = [](const ReportRequest& request, ErrorKind kind,
                          const std::vector<std::string>& parts) {
    testing::internal::CaptureStdout();
    expect_error(kind, parts, [&] { report_runs(request, Log()); });
    EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  };
  refused({{run}, none + "/page.html", ""}, ErrorKind::io, {none + "/page.html", "No such file"});
  refused({{run}, "", run}, ErrorKind::checkpoint, {run + "/timeline.h5", "nothing can be compared"});
  refused({{run, none}, "", ""}, ErrorKind::checkpoint, {none});
}

}  // namespace
}  // namespace cifar_mpi::page
