#include "report/summary_history.hpp"

#include <algorithm>
#include <functional>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "hdf5/hdf5.hpp"

namespace cifar_mpi::report {
namespace {

using engine::kHistogramBuckets;
using engine::ValueCounts;

constexpr const char* kSummaryFormat = "cifar_mpi summaries";
constexpr std::int64_t kSummaryVersion = 1;
constexpr const char* kKinds[] = {"/variables", "/gradients", "/activations"};
constexpr std::size_t kMostPoints = 1000, kLeastPoints = 16, kMostHistoryBytes = std::size_t{16} << 20;
constexpr std::size_t kPointBytes = 8 + 8 * (kHistogramBuckets + 1) + 8 * kHistogramBuckets + 8;
constexpr std::uint64_t kMostExtent = 4096;
constexpr int kMostDepth = 8;  // of nested groups, in an untrusted file

bool has_sparsity(const std::string& group) { return group.starts_with("/activations/"); }

/// The groups below `group` that have steps.
void find_groups(const hdf5::Reader& file, const std::string& group, int depth,
                 std::vector<std::string>& found) {
  if (file.has(group + "/steps") && !file.is_group(group + "/steps")) {
    found.push_back(group);
    return;
  }
  if (depth == kMostDepth) return;
  for (const std::string& member : file.members(group)) {
    const std::string path = concat(group, '/', member);
    if (file.is_group(path)) find_groups(file, path, depth + 1, found);
  }
}

void require(bool holds, const hdf5::Reader& file, const std::string& group, const char* expected) {
  if (holds) return;
  throw Error(ErrorKind::checkpoint, file.path(), " is damaged: ", group, " does not hold ", expected);
}

bool rises(const std::vector<std::uint64_t>& steps) {
  return std::ranges::adjacent_find(steps, std::greater_equal<>()) == steps.end();
}

}  // namespace

std::size_t SummaryHistory::most_points() const {
  const std::size_t groups = std::max<std::size_t>(series_.size(), 1);
  return std::clamp(kMostHistoryBytes / (groups * kPointBytes), kLeastPoints, kMostPoints);
}

void SummaryHistory::add(const std::string& group, std::uint64_t step, const ValueCounts& counts) {
  std::vector<Point>& points = series_[group];
  points.push_back({step, counts, sparsity(counts)});
  while (points.size() > most_points()) {
    std::size_t nearest = 1;
    const auto gap = [&](std::size_t i) { return points[i + 1].step - points[i - 1].step; };
    for (std::size_t i = 2; i + 1 < points.size(); ++i) {
      if (gap(i) < gap(nearest)) nearest = i;
    }
    points.erase(points.begin() + static_cast<std::ptrdiff_t>(nearest));
  }
}

void SummaryHistory::add(const StepSummary& summary) {
  for (const auto& [name, counts] : summary.variables) add("/variables/" + name, summary.step, counts);
  for (const auto& [name, counts] : summary.gradients) add("/gradients/" + name, summary.step, counts);
  for (const auto& [name, counts] : summary.activations) add("/activations/" + name, summary.step, counts);
}

void SummaryHistory::write(const DirectoryEntry& target) const {
  hdf5::Writer file(kSummaryFormat, kSummaryVersion);
  for (const char* const kind : kKinds) file.group(kind);
  if (!lacking_.empty()) file.attribute("/activations", "lacking", lacking_);
  for (const auto& [group, points] : series_) {
    std::vector<std::uint64_t> steps, buckets;
    std::vector<double> edges, zeros;
    for (const auto& [step, counts, share] : points) {
      steps.push_back(step);
      edges.insert(edges.end(), std::begin(counts.edges), std::end(counts.edges));
      buckets.insert(buckets.end(), std::begin(counts.buckets), std::end(counts.buckets));
      zeros.push_back(share);
    }
    file.write(group + "/steps", {points.size()}, steps);
    file.write(group + "/edges", {points.size(), kHistogramBuckets + 1}, edges);
    file.write(group + "/counts", {points.size(), kHistogramBuckets}, buckets);
    if (has_sparsity(group)) file.write(group + "/sparsity", {points.size()}, zeros);
  }
  if (has_images()) {
    const auto extent = [](int n) { return static_cast<std::uint64_t>(n); };
    file.write("/images",
               {images_.count(), extent(images_.extent.height), extent(images_.extent.width),
                extent(images_.extent.channels)},
               images_.pixels);
  }
  file.save(target);
}

SummaryHistory SummaryHistory::read(const DirectoryEntry& entry, std::uint64_t completed) {
  SummaryHistory history;
  if (!exists(entry)) return history;
  const hdf5::Reader file = hdf5::open_record(entry, kSummaryFormat, kSummaryVersion);
  std::vector<std::string> groups;
  for (const std::string kind : kKinds) {
    if (file.is_group(kind)) find_groups(file, kind, 0, groups);
  }
  for (const std::string& group : groups) {
    require(hdf5::count(file.dims(group + "/steps")) <= kMostPoints, file, group, "at most 1000 steps");
    const auto steps = file.read<std::uint64_t>(group + "/steps");
    const hdf5::Dims edge_dims{steps.size(), kHistogramBuckets + 1}, dims{steps.size(), kHistogramBuckets};
    require(file.dims(group + "/edges") == edge_dims && file.dims(group + "/counts") == dims, file, group,
            "31 edges and 30 counts per step");
    require(rises(steps), file, group, "ascending steps");
    const auto edges = file.read<double>(group + "/edges");
    const auto buckets = file.read<std::uint64_t>(group + "/counts");
    file.charge(group, steps.size(), sizeof(double) + sizeof(Point));
    std::vector<double> zeros(steps.size(), 0.0);
    if (has_sparsity(group)) file.read(group + "/sparsity", std::span<double>(zeros));
    for (std::size_t i = 0; i < steps.size() && steps[i] <= completed; ++i) {
      ValueCounts counts;
      for (std::size_t b = 0; b <= kHistogramBuckets; ++b)
        counts.edges[b] = static_cast<float>(edges[i * (kHistogramBuckets + 1) + b]);
      for (std::size_t b = 0; b < kHistogramBuckets; ++b)
        counts.buckets[b] = buckets[i * kHistogramBuckets + b];
      history.series_[group].push_back({steps[i], counts, zeros[i]});
    }
  }
  if (file.is_group("/activations") && file.has_attribute("/activations", "lacking"))
    history.lacking_ = file.attribute<std::string>("/activations", "lacking");
  if (file.has("/images")) {
    const hdf5::Dims dims = file.dims("/images");
    const bool plain = dims.size() == 4 &&
                       std::ranges::all_of(dims, [](std::uint64_t n) { return n > 0 && n <= kMostExtent; });
    require(plain, file, "/images", "[n, height, width, channels], each from 1 to 4096");
    history.images_ = {{static_cast<int>(dims[1]), static_cast<int>(dims[2]), static_cast<int>(dims[3])},
                       file.read<std::uint8_t>("/images")};
  }
  return history;
}

}  // namespace cifar_mpi::report
