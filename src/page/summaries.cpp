#include "page/summaries.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cifar_mpi/base/text.hpp"
#include "hdf5/hdf5.hpp"
#include "page/curves.hpp"
#include "page/events.hpp"
#include "page/run.hpp"

namespace cifar_mpi::page {
namespace {

constexpr std::size_t kMostGroups = 24;     // shown of a kind
constexpr std::uint64_t kMostSteps = 4096;  // read of a group
constexpr std::uint64_t kMostBuckets = 512;
constexpr std::size_t kPoints = 80;  // drawn

/// Paths of the groups below `group` that have `steps`, in the order of their names.
void find_groups(const hdf5::Reader& file, const std::string& group, int depth,
                 std::vector<std::string>& found) {
  constexpr int kDeepest = 3;
  const std::vector<std::string> members = file.members(group);
  if (std::find(members.begin(), members.end(), "steps") != members.end()) return found.push_back(group);
  if (depth >= kDeepest) return;
  for (const std::string& member : members) {
    if (file.is_group(concat(group, '/', member)))
      find_groups(file, concat(group, '/', member), depth + 1, found);
  }
}

Distributions read_group(const hdf5::Reader& file, const std::string& group, const std::string& name) {
  const auto fail = [&](const char* what) {
    throw Error(ErrorKind::checkpoint, concat(file.path(), " is damaged: ", group, ' ', what));
  };
  const hdf5::Dims steps = file.dims(group + "/steps"), edges = file.dims(group + "/edges"),
                   counts = file.dims(group + "/counts");
  if (steps.size() != 1 || edges.size() != 2 || counts.size() != 2 || edges[0] != steps[0] ||
      counts[0] != steps[0] || edges[1] != counts[1] + 1)
    fail("does not fit together");
  if (steps[0] > kMostSteps || counts[1] > kMostBuckets) fail("is too large");
  Distributions d;
  d.name = name;
  d.steps = file.read<std::uint64_t>(group + "/steps");
  const auto all_edges = file.read<double>(group + "/edges");
  const auto all_counts = file.read<std::uint64_t>(group + "/counts");
  const auto k = static_cast<std::ptrdiff_t>(counts[1]);
  for (std::size_t i = 0; i < d.steps.size(); ++i) {
    if (i > 0 && d.steps[i] <= d.steps[i - 1]) fail("has steps that do not rise");
    const auto row = static_cast<std::ptrdiff_t>(i);
    const std::vector<double> e(all_edges.begin() + row * (k + 1), all_edges.begin() + (row + 1) * (k + 1));
    const std::vector<std::uint64_t> c(all_counts.begin() + row * k, all_counts.begin() + (row + 1) * k);
    std::array<double, 5> quantiles{};
    constexpr std::array<double, 5> kShares{0.0, 0.05, 0.5, 0.95, 1.0};
    std::transform(kShares.begin(), kShares.end(), quantiles.begin(),
                   [&](double share) { return quantile(e, c, share); });
    d.quantiles.push_back(quantiles);
  }
  if (file.has(group + "/sparsity") && hdf5::count(file.dims(group + "/sparsity")) == steps[0])
    d.zeros = file.read<double>(group + "/sparsity");
  return d;
}

std::vector<Distributions> read_kind(const hdf5::Reader& file, const std::string& kind,
                                     std::size_t& left_out) {
  std::vector<Distributions> list;
  if (!file.has(kind)) return list;
  std::vector<std::string> groups;
  find_groups(file, kind, 0, groups);
  for (std::size_t i = 0; i < std::min(groups.size(), kMostGroups); ++i)
    list.push_back(
        read_group(file, groups[i], groups[i].substr(std::min(groups[i].size(), kind.size() + 1))));
  left_out += groups.size() - list.size();
  return list;
}

/// Those that a page can show; others are left out.
void read_images(const hdf5::Reader& file, Summaries& summaries) {
  constexpr std::uint64_t kMost = 64, kMostPixels = 256;
  if (!file.has("/images")) return;
  const hdf5::Dims dims = file.dims("/images");
  if (dims.size() != 4 || dims[0] > kMost || dims[1] > kMostPixels || dims[2] > kMostPixels || dims[3] < 1 ||
      dims[3] > 4)
    return;
  summaries.image = {static_cast<int>(dims[1]), static_cast<int>(dims[2]), static_cast<int>(dims[3])};
  if (summaries.image.count() > 0) summaries.images = file.read<std::uint8_t>("/images");
}

/// Evenly spread ones of n, the first and the last among them.
std::vector<std::size_t> spread(std::size_t n) {
  std::vector<std::size_t> picked;
  const std::size_t shown = std::min(n, kPoints);
  for (std::size_t i = 0; i < shown; ++i) picked.push_back(shown == 1 ? 0 : i * (n - 1) / (shown - 1));
  return picked;
}

}  // namespace

double quantile(const std::vector<double>& edges, const std::vector<std::uint64_t>& counts, double share) {
  const double total = std::accumulate(counts.begin(), counts.end(), 0.0, [](double sum, std::uint64_t n) {
    return sum + static_cast<double>(n);
  });
  if (total <= 0.0 || !std::all_of(edges.begin(), edges.end(), [](double e) { return std::abs(e) < 1e100; }))
    return std::nan("");
  double below = 0.0;
  const double wanted = share * total;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto here = static_cast<double>(counts[i]);
    if (here > 0.0 && below + here >= wanted)
      return edges[i] + (edges[i + 1] - edges[i]) * std::clamp((wanted - below) / here, 0.0, 1.0);
    below += here;
  }
  return edges.back();
}

Summaries read_summaries(const std::string& path) {
  const hdf5::Reader file(path, ErrorKind::checkpoint);
  if (!file.has_attribute("/", "format") ||
      file.attribute<std::string>("/", "format") != "cifar_mpi summaries")
    throw Error(ErrorKind::checkpoint, concat(path, " is an HDF5 file, but no cifar_mpi summaries"));
  if (const auto version = file.attribute<std::int64_t>("/", "version"); version != 1)
    throw Error(ErrorKind::checkpoint,
                concat(path, " has summaries version ", version, "; this program reads 1"));
  Summaries summaries;
  summaries.variables = read_kind(file, "/variables", summaries.left_out);
  summaries.gradients = read_kind(file, "/gradients", summaries.left_out);
  summaries.activations = read_kind(file, "/activations", summaries.left_out);
  read_images(file, summaries);
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
    if (d.zeros.empty() || chart.series.size() == kMostLines) continue;
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
