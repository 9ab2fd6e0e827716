#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "cifar_mpi/base/text.hpp"
#include "page/sections.hpp"
#include "page/text.hpp"

namespace cifar_mpi::page {
namespace {

using Row = std::vector<std::string>;

constexpr std::size_t kMostOptions = 12, kLongestValue = 40;
constexpr const char* kUnknown = "-";

/// The lines `option = value` of a config.toml, as texts without quotes.
std::map<std::string, std::string> options_of(const Run& run) {
  std::map<std::string, std::string> options;
  std::istringstream lines(run.configuration);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equal = line.find('=');
    if (line.starts_with('#') || equal == std::string::npos) continue;
    const auto trimmed = [](std::string text) {
      const std::size_t begin = text.find_first_not_of(" \t\r");
      return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
    };
    std::string value = trimmed(line.substr(equal + 1));
    if (value.size() > 1 && (value[0] == '"' || value[0] == '\'') && value.back() == value[0])
      value = value.substr(1, value.size() - 2);
    options[shortened(trimmed(line.substr(0, equal)), kLongestValue)] = shortened(value, kLongestValue);
  }
  options.erase("run-dir");
  return options;
}

std::string known(bool known, const std::string& text) { return known ? text : kUnknown; }

/// Ranks, steps, accuracies, speed and time.
Row results_of(const Run& run) {
  const auto& steps = run.metrics.steps;
  const auto& evaluations = run.metrics.evaluations;
  double best = -1.0;
  for (const report::EvaluationReport& e : evaluations) best = std::max(best, e.test_accuracy);
  const int ranks = rank_count(run);
  const double speed = recent_speed(run);
  return {known(ranks > 0, std::to_string(ranks)),
          known(!steps.empty(), steps.empty() ? "" : std::to_string(steps.back().step)),
          known(!evaluations.empty(), evaluations.empty() ? "" : percent(evaluations.back().test_accuracy)),
          known(best >= 0.0, percent(best)),
          known(std::isfinite(speed), whole(speed)),
          known(!run.seconds.empty(), run.seconds.empty() ? "" : whole(run.seconds.back()))};
}

std::size_t columns_of(const std::string& text) {  // of UTF-8
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

Comparison compare(const std::vector<Run>& runs) {
  Comparison table;
  if (runs.size() < 2) return table;
  std::vector<std::map<std::string, std::string>> options;
  std::map<std::string, std::string> all;  // names
  for (const Run& run : runs) all.merge(std::map(options.emplace_back(options_of(run))));
  std::vector<std::string> differing;
  for (const auto& [name, any] : all) {
    std::set<std::string> values;
    for (const auto& own : options) {
      if (!own.empty()) values.insert(own.contains(name) ? own.at(name) : kUnknown);
    }
    if (values.size() < 2) continue;
    if (differing.size() == kMostOptions) {
      ++table.more_options;
    } else {
      differing.push_back(name);
    }
  }
  table.head = {"run"};
  table.head.insert(table.head.end(), differing.begin(), differing.end());
  for (const char* name : {"ranks", "last step", "accuracy", "best", "images/s", "seconds"})
    table.head.emplace_back(name);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Row& row = table.rows.emplace_back(Row{runs[i].name});
    for (const std::string& name : differing)
      row.push_back(options[i].contains(name) ? options[i].at(name) : kUnknown);
    for (std::string& result : results_of(runs[i])) row.push_back(std::move(result));
  }
  return table;
}

std::vector<std::string> comparison_lines(const Comparison& table) {
  std::vector<std::string> lines;
  if (table.rows.empty()) return lines;
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < table.head.size(); ++c) {
    std::size_t width = columns_of(table.head[c]);
    for (const Row& row : table.rows) width = std::max(width, columns_of(row[c]));
    widths.push_back(width);
  }
  const auto add = [&](const Row& row) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string fill(widths[c] - columns_of(row[c]), ' ');
      line += c == 0 ? row[c] + fill : "  " + fill + row[c];
    }
    lines.push_back(std::move(line));
  };
  add(table.head);
  for (const Row& row : table.rows) add(row);
  if (table.more_options > 0)
    lines.push_back(concat(table.more_options, " more options differ, see the files config.toml"));
  return lines;
}

std::string comparison_html(const Comparison& table) {
  if (table.rows.empty()) return {};
  std::string head, rows;
  for (const std::string& name : table.head) head += column(html(name));
  for (const Row& row : table.rows) {
    rows += concat("<tr><th scope=\"row\">", html(row.front()), "</th>");
    for (std::size_t c = 1; c < row.size(); ++c) rows += concat("<td>", html(row[c]), "</td>");
    rows += "</tr>";
  }
  const std::string more = table.more_options > 0
                               ? concat("<p class=\"note\">", table.more_options, " more options differ.</p>")
                               : std::string();
  return concat("<section id=\"comparison\"><h2>Comparison</h2>",
                table_html("Comparison of the runs", head, rows), more, "</section>\n");
}

}  // namespace cifar_mpi::page
