#include "report/run_summary.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <numeric>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/terminal.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/report/efficiencies.hpp"
#include "cifar_mpi/report/step_budget.hpp"
#include "cifar_mpi/report/timeline_file.hpp"

namespace cifar_mpi::report {
namespace {

std::string row(std::string_view name, const std::vector<double>& ms, double step_ms) {
  const auto [least, most] = std::ranges::minmax_element(ms);
  const double mean = std::accumulate(ms.begin(), ms.end(), 0.0) / static_cast<double>(ms.size());
  return fmt::format("{:<20}|{:>9.2f} |{:>9.2f} |{:>9.2f} |{:>7.1f}", name, *least, mean, *most,
                     step_ms > 0.0 ? 100.0 * mean / step_ms : 0.0);
}

/// The newest trace in this folder.
std::string newest_trace(const DirectoryEntry& entry) try {
  const Directory folder(entry);
  double newest = 0.0;
  std::string found;
  for (const std::string& name : folder.names()) {
    if (!name.ends_with(".perfetto-trace")) continue;
    const DirectoryEntry file = folder / name;
    const double time = modified_s(file).value_or(0.0);
    if (!found.empty() && time <= newest) continue;
    newest = time;
    found = file.path();
  }
  return found;
} catch (const Error&) {
  return {};
}

/// The table, the verdict, and its numbers without repeating the sentence.
std::vector<std::string> verdict_lines(const Timeline& timeline, std::uint64_t resumed) {
  std::vector<std::string> lines = budget_table(timeline);
  const std::vector<std::string> words = verdict(efficiencies(timeline), timeline, resumed);
  lines.push_back((words.size() > 1 ? "verdict: " : "") + words.front());
  const std::string sentence = words.front().substr(words.front().find(' ') + 1);
  for (std::size_t i = 1; i < words.size(); ++i) {
    const bool told = words[i].ends_with(sentence);
    lines.push_back(concat("  ", words[i].substr(0, words[i].size() - (told ? sentence.size() : 0)),
                           told ? "see the verdict" : ""));
  }
  return lines;
}

std::vector<std::string> ways_to_look(const Directory& run) {
  std::vector<std::string> lines = {"to see more:", "  cifar_mpi_report " + shell_word(run.path())};
  if (const DirectoryEntry board = run / "tensorboard"; exists(board))
    lines.push_back("  tensorboard --logdir " + shell_word(board.path()));
  if (const std::string trace = newest_trace(run / "trace"); !trace.empty())
    lines.push_back(concat("  https://ui.perfetto.dev, Open trace file: ", trace));
  return lines;
}

}  // namespace

std::vector<std::string> budget_table(const Timeline& timeline) {
  const StepBudget budget = step_budget(timeline);
  const Efficiencies e = efficiencies(timeline);
  if (e.steps == 0) return {};
  const double step_ms = std::accumulate(budget.step_ms.begin(), budget.step_ms.end(), 0.0) / e.ranks;
  std::vector<std::string> lines = {
      concat("where the time of a step goes: ms of ", counted(e.steps, "sampled step"), " on ",
             counted(e.ranks, "rank")),
      fmt::format("{:<20}|{:>9} |{:>9} |{:>9} |{:>10}", "section", "min", "mean", "max", "% of step"),
      std::string(64, '-')};
  for (const auto& section : names_of(Section{})) {
    lines.push_back(row(title_of(section.value, timeline),
                        budget.section_ms[static_cast<std::size_t>(section.value)], step_ms));
  }
  lines.push_back(row("step", budget.step_ms, step_ms));
  return lines;
}

std::vector<std::string> run_summary(const Directory& run, std::string_view why_none, std::uint64_t resumed) {
  std::vector<std::string> lines;
  const DirectoryEntry file = run / "timeline.h5";
  try {
    if (exists(file)) {
      lines = verdict_lines(read_timeline(file), resumed);
    } else {  // the run has no sample
      lines.push_back(concat("no verdict: ", why_none));
    }
  } catch (const std::exception& error) {  // an error here must not fail a finished run
    lines.push_back(concat("no verdict: ", error.what()));
  }
  for (std::string& line : ways_to_look(run)) lines.push_back(std::move(line));
  return lines;
}

}  // namespace cifar_mpi::report
