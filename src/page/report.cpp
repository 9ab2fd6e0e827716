#include "cifar_mpi/page/report.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>

#include "cifar_mpi/base/atomic_file.hpp"
#include "cifar_mpi/base/text.hpp"
#include "page/page.hpp"
#include "page/run.hpp"
#include "page/sections.hpp"

namespace cifar_mpi::page {
namespace {

void tell(const Run& run, bool named, const Log& log) {
  if (named) log.info(concat(run.name, ":"));
  for (const auto& [name, text] : key_facts(run)) log.info(fmt::format("{:<14}  {}", name, text));
  for (const std::string& line : run.verdict)
    log.info(concat(&line == &run.verdict.front() ? "verdict         " : "  ", line));
  for (const std::string& problem : run.problems) log.warn(problem);
}

}  // namespace

void report_runs(const ReportRequest& request, const Log& log) {
  std::vector<Run> runs;
  for (const std::string& dir : request.run_dirs) runs.push_back(load_run(dir));
  const DirectoryEntry page =
      request.html.empty() ? runs.front().directory / "report.html" : DirectoryEntry(request.html);
  require_like_or_nothing(page, kPageBegins, "a page of cifar_mpi_report", "--html");
  if (!request.html.empty()) require_writable(page);
  std::optional<report::Timeline> baseline;
  if (!request.baseline.empty())
    baseline = load_timeline(request.baseline, "nothing can be compared with it");
  std::vector<std::string> forecast;
  if (request.forecast) {
    const report::Timeline timeline =
        load_timeline(request.run_dirs.front(), "nothing can be forecast from it");
    std::vector<std::string> exported;  // first, because it refuses what is too large
    if (!request.forecast->goal.empty() || !request.forecast->chakra.empty())
      exported = forecast::export_step(timeline, *request.forecast);
    forecast = forecast::forecast(timeline, *request.forecast);
    std::ranges::copy(exported, std::back_inserter(forecast));
  }
  for (Run& run : runs) run.verdict = verdict_of(run, baseline ? &*baseline : nullptr);
  name_runs(runs);
  for (const Run& run : runs) tell(run, runs.size() > 1, log);
  for (const std::string& line : comparison_lines(compare(runs))) log.info(line);
  for (const std::string& line : forecast) log.info(line);
  const std::string text = page_html(runs, page.path());
  write_atomically(page, text);
  log.info(fmt::format("{:<14}  {}", "page", page.path()));
}

}  // namespace cifar_mpi::page
