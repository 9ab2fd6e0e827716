#include <algorithm>

#include "cifar_mpi/base/text.hpp"
#include "page/sections.hpp"
#include "page/text.hpp"

namespace cifar_mpi::page {
namespace {

using report::RunEvent;
using report::RunEventKind;

bool begins(const RunEvent& event) {
  return event.kind == RunEventKind::start || event.kind == RunEventKind::resume;
}

/// The first start, at step 0, gets no mark.
bool is_news(const RunEvent& event) {
  return event.kind != RunEventKind::end && (event.kind != RunEventKind::start || event.reached > event.step);
}

std::string letter_of(const RunEvent& event) {
  if (event.kind == RunEventKind::stop) return "stop";
  if (event.kind == RunEventKind::fault) return "fault";
  // A resume after an orderly stop; any other end was a fault.
  const bool orderly = event.text.starts_with("75 ") || event.text.starts_with("0 ");
  return orderly ? "resume" : "fault";
}

std::string sentence(const RunEvent& event) {
  switch (event.kind) {
    case RunEventKind::stop:
    case RunEventKind::fault:
      return event.text;
    case RunEventKind::end:
      return event.text.empty() ? "done" : "done early: " + event.text;
    default:
      break;
  }
  std::string text = concat(counted(event.ranks, "rank"), event.hosts.empty() ? "" : " on ", event.hosts,
                            ", global batch ", event.global_batch, ", to step ", event.total_steps);
  if (event.kind == RunEventKind::start) return text;
  const std::size_t blank = std::min(event.text.find(' '), event.text.size());
  text += event.text.empty() ? "; the previous start left no exit record: it was probably killed"
                             : concat("; the previous start ended with code ", event.text.substr(0, blank),
                                      ":", event.text.substr(blank));
  if (event.reached > event.step)
    text += concat("; it had reached step ", event.reached, ", ", event.reached - event.step,
                   " steps are repeated");
  return text;
}

/// The text of a mark: short, because every picture has it.
std::string mark_text(const RunEvent& event) {
  constexpr std::size_t kMost = 120;
  if (!begins(event)) return shortened(event.text, kMost);
  if (letter_of(event) == "resume") return "resumed with " + counted(event.ranks, "rank");
  if (event.text.empty()) return "the run was killed after this step";
  return shortened(concat("the run failed after this step: ", event.text), kMost);
}

std::string row(const Run& run, const RunEvent& event, bool named) {
  constexpr std::size_t kMost = 4000;  // the length of a line of `exit`
  return concat("<tr>", named ? concat("<th scope=\"row\">", html(run.name), "</th>") : std::string(), "<td>",
                html(shortened(event.time, 40)), "</td><td>", whole(static_cast<double>(event.step)),
                "</td><td class=\"word\">", to_string(event.kind), "</td><td class=\"wide\">",
                html(shortened(sentence(event), kMost)), "</td></tr>");
}

}  // namespace

std::vector<Mark> marks_of(const Run& run) {
  constexpr std::size_t kMost = 40;
  std::vector<Mark> marks;
  for (const RunEvent& event : run.metrics.events) {
    if (!is_news(event)) continue;
    const AxisValues x = place_of(run, static_cast<double>(event.step));
    // A stop and the resume after it share a mark.
    if (!marks.empty() && marks.back().x[0] == x[0]) {
      if (begins(event) && marks.back().letter == "stop") marks.back() = {x, "resume", "stopped and resumed"};
      continue;
    }
    if (marks.size() < kMost) marks.push_back({x, letter_of(event), mark_text(event)});
  }
  return marks;
}

std::string events_html(const std::vector<Run>& runs) {
  constexpr std::size_t kMost = 200;
  std::string rows;
  for (const Run& run : runs) {
    const auto& events = run.metrics.events;
    for (std::size_t i = events.size() - std::min(events.size(), kMost); i < events.size(); ++i)
      rows += row(run, events[i], runs.size() > 1);
  }
  if (rows.empty()) return {};
  std::string head = runs.size() > 1 ? column("run") : "";
  head += column("time") + column("step") + column("event", kWords) + column("details", kWords);
  return concat("<section id=\"events\"><h2>What happened</h2>", table_html("What happened", head, rows),
                "</section>\n");
}

}  // namespace cifar_mpi::page
