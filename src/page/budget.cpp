#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/report/efficiencies.hpp"
#include "cifar_mpi/report/step_budget.hpp"
#include "cifar_mpi/report/verdict.hpp"
#include "page/sections.hpp"
#include "page/text.hpp"
#include "report/sampled_steps.hpp"

namespace cifar_mpi::page {
namespace {

using report::StepBudget;

std::string milliseconds(double value) { return fmt::format("{:.2f}", value); }

/// The ranks to show, as indices into the budget: all, or, if there are many, those with the longest and
/// those with the shortest work in a step.
std::vector<std::size_t> shown_ranks(const StepBudget& budget) {
  constexpr std::size_t kMost = 24;
  std::vector<std::size_t> order(budget.ranks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (order.size() <= kMost) return order;
  const auto& exposed = budget.section_ms[static_cast<std::size_t>(report::Section::all_reduce)];
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return budget.step_ms[a] - exposed[a] > budget.step_ms[b] - exposed[b];
  });
  order.erase(order.begin() + kMost / 2, order.end() - kMost / 2);
  return order;
}

std::string rank_name(const report::Timeline& timeline, int rank) {
  const auto r = static_cast<std::size_t>(rank);
  return concat("rank ", rank,
                r < timeline.hosts.size() ? " on " + shortened(timeline.hosts[r], 40) : std::string());
}

std::string bars(const report::Timeline& timeline, const StepBudget& budget,
                 const std::vector<std::size_t>& shown) {
  const double longest = std::ranges::max(budget.step_ms);
  std::string legend = "<ul class=\"legend\">", list;
  for (const auto& [_, section] : names_of(report::Section{}))
    legend += concat("<li><span class=\"swatch b", static_cast<int>(section), "\"></span>",
                     title_of(section, timeline), "</li>");
  for (const std::size_t r : shown) {
    std::string parts,
        words = concat(rank_name(timeline, budget.ranks[r]), ", ", milliseconds(budget.step_ms[r]), " ms:");
    for (const auto& [_, section] : names_of(report::Section{})) {
      const double ms = budget.section_ms[static_cast<std::size_t>(section)][r];
      words += concat(' ', title_of(section, timeline), ' ', milliseconds(ms), " ms,");
      if (ms > 0.0)
        parts += fmt::format("<span class=\"b{} {}\"></span>", static_cast<int>(section),
                             place_class(ms / longest));
    }
    words.pop_back();
    list += concat("<li><span>", html(rank_name(timeline, budget.ranks[r])),
                   "</span><div class=\"bar\" role=\"img\" tabindex=\"0\" aria-label=\"", html(words),
                   "\" data-tip=\"", html(words), "\">", parts, "</div><b>", milliseconds(budget.step_ms[r]),
                   " ms</b></li>");
  }
  return concat(legend, "</ul><ul class=\"bars\">", list, "</ul>");
}

std::string rank_table(const report::Timeline& timeline, const StepBudget& budget,
                       const std::vector<std::size_t>& shown) {
  std::string head = column("rank"), rows;
  for (const auto& [_, section] : names_of(report::Section{})) head += column(title_of(section, timeline));
  for (const std::size_t r : shown) {
    rows += concat("<tr><th scope=\"row\">", html(rank_name(timeline, budget.ranks[r])), "</th>");
    for (const auto& section : budget.section_ms) rows += concat("<td>", milliseconds(section[r]), "</td>");
    rows += concat("<td>", milliseconds(budget.step_ms[r]), "</td></tr>");
  }
  return concat("<details><summary>Table: milliseconds of a step by rank</summary>",
                table_html("Milliseconds of a step by rank", head + column("step"), rows), "</details>");
}

std::string task_table(const report::Timeline& timeline) {
  constexpr std::size_t kMost = 400;
  const report::SampledSteps sampled = report::sampled_steps(timeline);
  const std::vector<report::Section> sections = report::sections_of(timeline);
  const std::vector<std::vector<double>> times = report::task_ms(timeline, sampled);
  double longest = 0.0;
  for (const auto& task : times) longest = std::max(longest, std::ranges::max(task));
  std::string rows;
  for (std::size_t t = 0; t < std::min(times.size(), kMost); ++t) {
    const auto [least, most] = std::ranges::minmax_element(times[t]);
    const double mean =
        std::accumulate(times[t].begin(), times[t].end(), 0.0) / static_cast<double>(times[t].size());
    const double share = longest > 0.0 ? mean / longest : 0.0;
    rows += concat("<tr><th scope=\"row\">", html(shortened(timeline.tasks[t].name, 80)),
                   "</th><td class=\"word\">", title_of(sections[t], timeline), "</td><td>",
                   milliseconds(mean), "</td><td>", milliseconds(*least), "</td><td>", milliseconds(*most),
                   "</td><td>", sampled.ranks[static_cast<std::size_t>(most - times[t].begin())],
                   "</td><td class=\"amount\"><span class=\"b", static_cast<int>(sections[t]), ' ',
                   place_class(share), "\"></span></td></tr>");
  }
  std::string head = column("task") + column("section", kWords);
  for (const char* const name : {"mean over ranks", "least", "most", "slowest rank"}) head += column(name);
  return concat("<details><summary>Table: milliseconds of a step by task</summary>",
                table_html("Milliseconds of a step by task", head + "<td></td>", rows), "</details>");
}

}  // namespace

std::vector<std::string> verdict_of(const Run& run, const report::Timeline* baseline) {
  if (!run.timeline) return {};
  const report::Timeline& timeline = *run.timeline;
  return report::verdict(
      baseline == nullptr ? report::efficiencies(timeline) : report::efficiencies(timeline, *baseline),
      timeline, last_start(run));
}

std::string verdict_html(const std::vector<std::string>& lines) {
  if (lines.empty()) return {};
  std::string rows;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    // "load balance             1.00  ranks compute for about the same time"
    const std::string& line = lines[i];
    const std::size_t number = std::min(line.find_first_of("0123456789"), line.size()),
                      text = std::min(line.find("  ", number), line.size());
    const std::size_t name = line.find_last_not_of(' ', number == 0 ? 0 : number - 1);
    rows += concat("<dt>", html(line.substr(0, name == std::string::npos ? 0 : name + 1)), " <b>",
                   html(line.substr(number, text - number)), "</b></dt><dd>",
                   html(line.substr(std::min(line.find_first_not_of(' ', text), line.size()))), "</dd>");
  }
  const std::string list = rows.empty() ? std::string() : concat("<dl class=\"numbers\">", rows, "</dl>");
  return concat("<p class=\"verdict\">", html(lines.front()), "</p>", list);
}

std::string budget_html(const Run& run) {
  if (!run.timeline) return {};
  const report::Timeline& timeline = *run.timeline;
  const StepBudget budget = report::step_budget(timeline);
  if (budget.ranks.empty() || std::ranges::max(budget.step_ms) <= 0.0) return {};
  const std::vector<std::size_t> shown = shown_ranks(budget);
  const std::string which =
      shown.size() < budget.ranks.size()
          ? concat(" Of ", budget.ranks.size(),
                   " ranks, only those with the longest and those with the shortest work are shown.")
          : std::string();
  const bool served = is_served(timeline);
  const std::string note = concat(
      "<p class=\"note\">Mean of ", timeline.steps.size(), " sampled steps, ", timeline.steps.front().step,
      " to ", timeline.steps.back().step, served ? "; update by " : "; all-reduce ",
      html(timeline.collective), ", sent as ", html(timeline.wire), ". The part of ",
      served ? "pushes" : "the all-reduce", " that overlaps work does not count as exposed.", which, "</p>");
  return concat("<figure>", note, bars(timeline, budget, shown), rank_table(timeline, budget, shown),
                task_table(timeline), "</figure>");
}

}  // namespace cifar_mpi::page
