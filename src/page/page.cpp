#include "page/page.hpp"

#include "cifar_mpi/base/build_info.hpp"
#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/text.hpp"
#include "page/sections.hpp"
#include "page/text.hpp"

namespace cifar_mpi::page {
namespace {

std::string facts_html(const Facts& facts, bool commands = false) {
  std::string list = "<dl>";
  for (const auto& [name, text] : facts)
    list += concat("<dt>", html(name), "</dt><dd>", commands ? "<code>" : "", html(text),
                   commands ? "</code>" : "", "</dd>");
  return list + "</dl>";
}

/// One heading for each run if there are several.
std::string for_each_run(const std::vector<Run>& runs, const char* id, const char* title, const auto& body) {
  std::string text;
  for (const Run& run : runs) {
    const std::string part = body(run);
    if (part.empty()) continue;
    text += runs.size() > 1 ? concat("<h3>", html(run.name), "</h3>", part) : part;
  }
  if (text.empty()) return {};
  return concat("<section id=\"", id, "\"><h2>", title, "</h2>", text, "</section>\n");
}

std::string state_html(const Run& run) {
  std::string tiles;
  for (const auto& [name, value] : tiles_of(run))
    tiles += concat("<li><span>", html(name), "</span><b>", html(value), "</b></li>");
  if (!tiles.empty()) tiles = concat("<ul class=\"tiles\">", tiles, "</ul>");
  const std::string line = headline(run);
  return concat(line.empty() ? std::string() : concat("<p class=\"note\">", html(line), "</p>"), tiles,
                facts_html(key_facts(run)));
}

std::string problems_html(const Run& run) {
  if (run.problems.empty()) return {};
  std::string list = "<ul>";
  for (const std::string& problem : run.problems) list += concat("<li>", html(problem), "</li>");
  return list + "</ul>";
}

std::string configuration_html(const Run& run) {
  if (run.configuration.empty()) return {};
  return concat("<details><summary>config.toml</summary><pre class=\"scroll\" tabindex=\"0\">",
                html(run.configuration, true), "</pre></details>");
}

/// The identity and the chosen settings of the run; they are long, so they open on demand.
std::string settings_html(const Run& run) {
  if (!run.checkpoint) return {};
  Facts facts(run.checkpoint->progress.identity.begin(), run.checkpoint->progress.identity.end());
  for (const auto& item : run.checkpoint->progress.resolved) facts.push_back(item);
  return concat("<details><summary>All settings</summary>", facts_html(facts), "</details>");
}

std::string provenance_html(const Run& run) {
  const Facts facts = provenance_facts(run);
  std::string text = facts.empty() ? std::string() : facts_html(facts);
  if (run.checkpoint && !run.checkpoint->provenance.kernels.empty())
    text += concat("<details><summary>Kernels</summary><pre class=\"scroll\" tabindex=\"0\">",
                   html(run.checkpoint->provenance.kernels, true), "</pre></details>");
  return text + settings_html(run) + configuration_html(run);
}

constexpr const char* kAxisChoice =
    "<fieldset class=\"axes\"><legend>Horizontal axis</legend>"
    "<label><input type=\"radio\" name=\"axis\" id=\"axis-step\" value=\"step\" checked> step</label>"
    "<label><input type=\"radio\" name=\"axis\" id=\"axis-epoch\" value=\"epoch\"> epoch</label>"
    "<label><input type=\"radio\" name=\"axis\" id=\"axis-time\" value=\"time\"> training "
    "time</label></fieldset>";

struct Charts {
  std::string html;
  std::string json;
};

Charts charts_html(const std::vector<Chart>& charts) {
  Charts all;
  for (const Chart& chart : charts) {
    all.html += figure_html(chart);
    all.json += (all.json.empty() ? "" : ",") + figure_json(chart);
  }
  return all;
}

/// A figure for each variable, gradient and layer of the first run.
Charts histograms(const Run& run) {
  Charts all;
  if (!run.summaries) return all;
  const Summaries& summaries = *run.summaries;
  const auto add = [&](const char* title, const std::vector<Chart>& charts, bool open,
                       const std::string& note = {}) {
    if (charts.empty()) return;
    const Charts kind = charts_html(charts);
    all.html += concat("<details", open ? " open" : "", "><summary>", title, "</summary>",
                       note.empty() ? std::string() : concat("<p class=\"note\">", html(note), "</p>"),
                       "<div class=\"charts\">", kind.html, "</div></details>");
    all.json += (all.json.empty() ? "" : ",") + kind.json;
  };
  add("Weights", distribution_charts(run, summaries.variables, "variable"), true);
  add("Gradients", distribution_charts(run, summaries.gradients, "gradient"), false);
  std::vector<Chart> layers = distribution_charts(run, summaries.activations, "activation");
  if (Chart zeros = zeros_chart(run); !zeros.series.empty()) layers.insert(layers.begin(), std::move(zeros));
  add("Outputs of layers", layers, false, summaries.lacking);
  if (all.html.empty()) return all;
  const std::string rest =
      summaries.left_out > 0 ? concat(" ", summaries.left_out, " more are in summaries.h5.") : std::string();
  all.html = concat(
      "<section id=\"histograms\"><h2>Weights, gradients and activations</h2><p class=\"note\">The "
      "distribution of the values of a tensor over time.",
      rest, "</p>", all.html, "</section>\n");
  return all;
}

std::string head(const std::string& title) {
  // The policy allows no loading or sending, and only the page's own style and script, even if a run's files contain
  // hostile text. The hashes allow no style attributes; the script sets styles through the DOM, which is allowed.
  return concat(kPageBegins,
                "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
                "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; base-uri 'none'; "
                "form-action 'none'; img-src data:; style-src '",
                kStyleHash, "'; script-src '", kScriptHash,
                "'\"><meta name=\"color-scheme\" content=\"light dark\"><title>", html(title),
                "</title><style>", kStyle, "</style></head>\n");
}

}  // namespace

std::string page_html(const std::vector<Run>& runs, const std::string& path) {
  std::string title = runs.front().name;
  for (std::size_t i = 1; i < runs.size(); ++i) title += " and " + runs[i].name;
  const Charts charts = charts_html(curves(runs));
  std::string body = concat("<header><h1>", html(title), "</h1></header><main>\n");
  body += comparison_html(compare(runs));
  body += for_each_run(runs, "state", "Status", state_html);
  body += for_each_run(runs, "problems", "What could not be read", problems_html);
  body += for_each_run(runs, "verdict", "Utilization of the ranks",
                       [](const Run& run) { return verdict_html(run.verdict); });
  const Charts tensors = histograms(runs.front());
  if (!charts.html.empty() || !tensors.html.empty())
    body += concat("<section id=\"curves\"><h2>Curves</h2>", kAxisChoice, "<div class=\"charts\">",
                   charts.html, "</div></section>\n");
  body += for_each_run(runs, "budget", "Where the time of a step goes", budget_html);
  body += events_html(runs);
  body += tensors.html;
  body += for_each_run(runs, "confusion", "Confusion matrix", confusion_html);
  body += for_each_run(runs, "wrong", "Misclassified test images", wrong_images_html);
  body += for_each_run(runs, "inputs", "What the network sees", input_images_html);
  body += for_each_run(runs, "filters", "Filters of the first layer", filters_html);
  body += for_each_run(runs, "provenance", "Configuration and machine", provenance_html);
  body += for_each_run(runs, "files", "Files",
                       [&](const Run& run) { return facts_html(files_of(run, path), true); });
  return concat(head(title), "<body>", body, "</main><footer>Written by cifar_mpi_report ", html(version()),
                " (", html(git_revision()), ") at ", wall_time(),
                "</footer>\n<script type=\"application/json\" id=\"data\">{\"charts\":[", charts.json,
                charts.json.empty() || tensors.json.empty() ? "" : ",", tensors.json, "]}</script>\n<script>",
                kScript, "</script></body></html>\n");
}

}  // namespace cifar_mpi::page
