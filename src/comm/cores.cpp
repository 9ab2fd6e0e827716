#include "comm/cores.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <sstream>
#include <string>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::comm {
namespace {

cpu_set_t* as_set(CoreMask& mask) { return reinterpret_cast<cpu_set_t*>(mask.data()); }

std::size_t bytes_in(const CoreMask& mask) { return mask.size() * sizeof(CoreMask::value_type); }

bool is_subset(const CoreMask& part, const CoreMask& whole) { return intersect(part, whole) == part; }

/// The two words of cpu.max, or the files of version 1, as cores; empty: no limit here.
std::optional<double> quota_in(const std::filesystem::path& group) {
  std::string quota;
  double period = 0.0;
  std::ifstream both(group / "cpu.max");
  if (!(both >> quota >> period)) {
    std::ifstream first(group / "cpu.cfs_quota_us"), second(group / "cpu.cfs_period_us");
    if (!(first >> quota) || !(second >> period)) return std::nullopt;
  }
  const double limit = std::atof(quota.c_str());  // "max" and -1 mean no limit
  if (limit <= 0.0 || period <= 0.0) return std::nullopt;
  return limit / period;
}

/// Whether one of the words between commas is "cpu".
bool names_cpu(const std::string& controllers) {
  return concat(',', controllers, ',').find(",cpu,") != std::string::npos;
}

}  // namespace

CoreMask intersect(const CoreMask& a, const CoreMask& b) {
  CoreMask both(std::min(a.size(), b.size()));
  for (std::size_t i = 0; i < both.size(); ++i) both[i] = a[i] & b[i];
  return both;
}

std::optional<double> cpu_quota(const std::filesystem::path& groups,
                                const std::filesystem::path& own_groups) {
  std::optional<double> least;
  std::ifstream list(own_groups);
  for (std::string line; std::getline(list, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && !names_cpu(controllers)) continue;
    // Inside a container the path may be that of the host; then only the root exists.
    const std::filesystem::path root = controllers.empty() ? groups : groups / controllers;
    std::filesystem::path group =
        std::filesystem::path(line.substr(second + 1)).relative_path().lexically_normal();
    if (!group.empty() && *group.begin() == "..") group.clear();
    for (;; group = group.parent_path()) {
      const std::optional<double> quota = quota_in(root / group);
      if (quota && (!least || *quota < *least)) least = quota;
      if (group.empty()) break;
    }
  }
  return least;
}

double busy_seconds(const CoreMask& mask) {
  double ticks = 0.0;
  std::ifstream file("/proc/stat");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    double user = 0.0, nice = 0.0, system = 0.0, idle = 0.0, waits = 0.0, irq = 0.0, soft_irq = 0.0,
           steal = 0.0;
    words >> name >> user >> nice >> system >> idle >> waits >> irq >> soft_irq >> steal;
    if (!name.starts_with("cpu") || name.size() == 3) continue;
    const auto core = static_cast<std::size_t>(std::atol(name.c_str() + 3));
    if (core / 64 >= mask.size() || (mask[core / 64] >> (core % 64) & 1) == 0) continue;
    ticks += user + nice + system + irq + soft_irq + steal;
  }
  return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

int count_cores(const CoreMask& mask) {
  int cores = 0;
  for (const std::uint64_t word : mask) cores += std::popcount(word);
  return cores;
}

bool have_common_cores(const CoreMask& a, const CoreMask& b) { return count_cores(intersect(a, b)) > 0; }

CoreMask affinity_mask() {
  constexpr std::size_t kMostWords = 1 << 16;
  // The kernel refuses a mask shorter than its own, so start with the usual 1 024 cores and double.
  for (CoreMask mask(16); mask.size() <= kMostWords; mask.resize(mask.size() * 2)) {
    if (sched_getaffinity(0, bytes_in(mask), as_set(mask)) == 0) return mask;
    if (errno != EINVAL) break;
  }
  return {1};
}

CoreMask allowed_mask() {
  CoreMask bound = affinity_mask();
  // The kernel cuts a request down to the cpuset of the container or job: request all cores, read the result,
  // and restore the mask.
  CoreMask everything(bound.size(), ~std::uint64_t{0});
  if (sched_setaffinity(0, bytes_in(everything), as_set(everything)) != 0) return bound;
  CoreMask allowed = affinity_mask();
  sched_setaffinity(0, bytes_in(bound), as_set(bound));
  return allowed;
}

CoreShare share_cores(std::span<const CoreMask> masks, std::size_t mine, const CoreMask& allowed,
                      std::optional<double> quota) {
  const auto ranks_where = [&](auto&& condition) {
    return static_cast<int>(std::ranges::count_if(masks, condition));
  };
  CoreShare share;
  const CoreMask& own = masks[mine];
  share.cores = count_cores(own);
  share.sharers =
      std::max(1, ranks_where([&](const CoreMask& other) { return have_common_cores(own, other); }));
  share.fair_threads = share.cores / share.sharers;
  if (quota) {
    const double each = std::floor(*quota / static_cast<double>(masks.size()));
    share.fair_threads = static_cast<int>(std::min<double>(share.fair_threads, each));
  }
  share.fair_threads = std::max(1, share.fair_threads);

  CoreMask used(own.size(), 0);
  for (const CoreMask& mask : masks) {
    for (std::size_t i = 0; i < used.size(); ++i) used[i] |= mask[i];
    const int inside = ranks_where([&](const CoreMask& other) { return is_subset(other, mask); });
    share.oversubscribed = share.oversubscribed || inside > count_cores(mask);
  }
  share.oversubscribed = share.oversubscribed || static_cast<int>(masks.size()) > count_cores(used);
  share.unused_cores = count_cores(allowed) - count_cores(intersect(allowed, used));
  return share;
}

}  // namespace cifar_mpi::comm
