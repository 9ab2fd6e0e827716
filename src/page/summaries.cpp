#include "page/summaries.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cifar_mpi/base/text.hpp"
#include "page/run.hpp"
#include "page/sections.hpp"
#include "report/summary_history.hpp"

namespace cifar_mpi::page {
namespace {

constexpr std::size_t kMostGroups = 24;  // shown of a kind
constexpr std::size_t kPoints = 80;      // drawn

/// The groups of a kind, in the order of their names.
std::vector<Distributions> of_kind(const report::SummaryHistory& history, const std::string& kind,
                                   std::size_t& left_out) {
  constexpr std::array<double, 5> kShares{0.0, 0.05, 0.5, 0.95, 1.0};
  std::vector<Distributions> list;
  for (const auto& [group, points] : history.series()) {
    if (!group.starts_with(kind)) continue;
    if (list.size() == kMostGroups) {
      ++left_out;
      continue;
    }
    Distributions& d = list.emplace_back();
    d.name = group.substr(kind.size());
    for (const report::SummaryHistory::Point& point : points) {
      d.steps.push_back(point.step);
      d.zeros.push_back(point.sparsity);
      std::ranges::transform(kShares, d.quantiles.emplace_back().begin(),
                             [&](double share) { return quantile(point.counts, share); });
    }
  }
  return list;
}

/// Whether a page can show these images.
bool fit_a_page(const report::InputImages& images) {
  constexpr int kMost = 64, kMostPixels = 256, kMostChannels = 4;
  const Extent& extent = images.extent;
  return !images.empty() && images.count() <= kMost && extent.height <= kMostPixels &&
         extent.width <= kMostPixels && extent.channels <= kMostChannels;
}

/// Evenly spread indices below n, including the first and the last.
std::vector<std::size_t> spread(std::size_t n) {
  std::vector<std::size_t> picked;
  const std::size_t shown = std::min(n, kPoints);
  for (std::size_t i = 0; i < shown; ++i) picked.push_back(shown == 1 ? 0 : i * (n - 1) / (shown - 1));
  return picked;
}

}  // namespace

double quantile(const engine::ValueCounts& counts, double share) {
  const double total =
      std::accumulate(std::begin(counts.buckets), std::end(counts.buckets), 0.0,
                      [](double sum, std::uint64_t n) { return sum + static_cast<double>(n); });
  if (total <= 0.0 || !std::ranges::all_of(counts.edges, [](float edge) { return std::isfinite(edge); }))
    return std::nan("");
  double below = 0.0;
  const double wanted = share * total;
  for (int i = 0; i < engine::kHistogramBuckets; ++i) {
    const double here = static_cast<double>(counts.buckets[i]), left = counts.edges[i];
    if (here > 0.0 && below + here >= wanted)
      return left + (counts.edges[i + 1] - left) * std::clamp((wanted - below) / here, 0.0, 1.0);
    below += here;
  }
  return counts.edges[engine::kHistogramBuckets];
}

Summaries read_summaries(const DirectoryEntry& file) {
  const report::SummaryHistory history = report::SummaryHistory::read(file);
  Summaries summaries;
  summaries.variables = of_kind(history, "/variables/", summaries.left_out);
  summaries.gradients = of_kind(history, "/gradients/", summaries.left_out);
  summaries.activations = of_kind(history, "/activations/", summaries.left_out);
  summaries.lacking = history.lacking();
  if (fit_a_page(history.images())) summaries.images = history.images();
  return summaries;
}

std::vector<Chart> distribution_charts(const Run& run, const std::vector<Distributions>& list,
                                       const std::string& kind) {
  std::vector<Chart> charts;
  for (const Distributions& d : list) {
    Chart chart;
    chart.id = concat(kind, '-', charts.size());
    chart.title = d.name;
    Series middle{"median", 0, false, "5 % to 95 %", {}}, least{"least", 1, false, "", {}},
        most{"largest", 2, false, "", {}};
    for (const std::size_t i : spread(d.steps.size())) {
      const AxisValues x = place_of(run, static_cast<double>(d.steps[i]));
      const auto& q = d.quantiles[i];
      middle.points.push_back({x, q[1], q[2], q[3]});
      least.points.push_back({x, q[0], q[0], q[0]});
      most.points.push_back({x, q[4], q[4], q[4]});
    }
    chart.series = {std::move(middle), std::move(least), std::move(most)};
    charts.push_back(std::move(chart));
  }
  return charts;
}

Chart zeros_chart(const Run& run) {
  constexpr std::size_t kMostLines = 8;
  Chart chart;
  chart.id = "zeros";
  chart.title = "Zeros among the activations";
  chart.unit = Unit::share;
  chart.from_zero = true;
  for (const Distributions& d : run.summaries->activations) {
    if (chart.series.size() == kMostLines) break;
    Series series{d.name, static_cast<int>(chart.series.size()), false, "", {}};
    for (const std::size_t i : spread(d.steps.size())) {
      const double share = d.zeros[i] >= 0.0 && d.zeros[i] <= 1.0 ? d.zeros[i] : std::nan("");
      series.points.push_back({place_of(run, static_cast<double>(d.steps[i])), share, share, share});
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

}  // namespace cifar_mpi::page
