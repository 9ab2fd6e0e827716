#include <algorithm>
#include <tuple>

#include "cifar_mpi/base/text.hpp"
#include "page/sections.hpp"
#include "page/text.hpp"

namespace cifar_mpi::page {
namespace {

constexpr std::size_t kMostInTable = 24;  // classes; with more, the table is unreadable
constexpr std::size_t kMostMistakes = 20;

std::string name_of(const run::EvaluationFile& evaluation, std::size_t c) {
  return html(shortened(evaluation.label_names[c], 40));
}

/// The share of each prediction in a class, by row.
std::string matrix(const run::EvaluationFile& evaluation) {
  const std::size_t classes = evaluation.label_names.size();
  std::string head = column("true class ↓, predicted →", kWords), rows;
  for (std::size_t c = 0; c < classes; ++c)
    head += column(concat("<span>", name_of(evaluation, c), "</span>"), " class=\"up\"");
  for (std::size_t r = 0; r < classes; ++r) {
    double total = 0.0;
    for (std::size_t c = 0; c < classes; ++c)
      total += static_cast<double>(evaluation.confusion[r * classes + c]);
    rows += concat("<tr><th scope=\"row\">", name_of(evaluation, r), "</th>");
    for (std::size_t c = 0; c < classes; ++c) {
      const auto count = evaluation.confusion[r * classes + c];
      const double share = total > 0.0 ? static_cast<double>(count) / total : 0.0;
      rows += concat("<td class=\"", r == c ? "right" : "miss", share > 0.55 ? " strong " : " ",
                     place_class(share), "\">", count, "</td>");
    }
    rows += "</tr>";
  }
  return table_html("Confusion matrix", head, rows, " class=\"matrix\"");
}

/// The most common mistakes, which replace the matrix for many classes.
std::string mistakes(const run::EvaluationFile& evaluation) {
  const std::size_t classes = evaluation.label_names.size();
  std::vector<std::tuple<std::uint64_t, std::size_t, std::size_t>> list;
  for (std::size_t r = 0; r < classes; ++r) {
    for (std::size_t c = 0; c < classes; ++c) {
      if (r != c && evaluation.confusion[r * classes + c] > 0)
        list.emplace_back(evaluation.confusion[r * classes + c], r, c);
    }
  }
  std::ranges::stable_sort(list,
                           [](const auto& a, const auto& b) { return std::get<0>(a) > std::get<0>(b); });
  std::string rows;
  for (std::size_t i = 0; i < std::min(list.size(), kMostMistakes); ++i) {
    const auto& [count, r, c] = list[i];
    rows += concat("<tr><td class=\"word\">", name_of(evaluation, r), "</td><td class=\"word\">",
                   name_of(evaluation, c), "</td><td>", count, "</td></tr>");
  }
  if (rows.empty()) return {};
  const bool open = classes > kMostInTable;
  const std::string head =
      column("true class", kWords) + column("predicted class", kWords) + column("images");
  return concat("<details", open ? " open" : "", "><summary>Most common mistakes</summary>",
                table_html("Most common mistakes", head, rows), "</details>");
}

}  // namespace

std::string confusion_html(const Run& run) {
  if (!run.evaluation) return {};
  const run::EvaluationFile& evaluation = *run.evaluation;
  std::uint64_t total = 0, right = 0;
  const std::size_t classes = evaluation.label_names.size();
  for (std::size_t i = 0; i < evaluation.confusion.size(); ++i) {
    total += evaluation.confusion[i];
    if (i % (classes + 1) == 0) right += evaluation.confusion[i];
  }
  const std::string note =
      concat("<p class=\"note\">Step ", evaluation.step, ", ",
             evaluation.weights == "raw" ? "the weights" : "the averaged weights", ": ", right, " of ", total,
             " test images correct. Rows are the true classes, columns the predicted ones.</p>");
  return concat(note, classes <= kMostInTable ? matrix(evaluation) : std::string(), mistakes(evaluation));
}

}  // namespace cifar_mpi::page
