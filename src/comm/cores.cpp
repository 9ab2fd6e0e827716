#include "comm/cores.hpp"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>

namespace cifar_mpi::comm {
namespace {

cpu_set_t* as_set(CoreMask& mask) { return reinterpret_cast<cpu_set_t*>(mask.data()); }

std::size_t bytes_in(const CoreMask& mask) { return mask.size() * sizeof(CoreMask::value_type); }

CoreMask intersect(const CoreMask& a, const CoreMask& b) {
  CoreMask both(std::min(a.size(), b.size()));
  for (std::size_t i = 0; i < both.size(); ++i) both[i] = a[i] & b[i];
  return both;
}

bool is_subset(const CoreMask& part, const CoreMask& whole) { return intersect(part, whole) == part; }

}  // namespace

int count_cores(const CoreMask& mask) {
  int cores = 0;
  for (const std::uint64_t word : mask) cores += std::popcount(word);
  return cores;
}

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
  // The kernel cuts a request down to the cpuset of the container or job: ask for everything, look, and go
  // back.
  CoreMask everything(bound.size(), ~std::uint64_t{0});
  if (sched_setaffinity(0, bytes_in(everything), as_set(everything)) != 0) return bound;
  CoreMask allowed = affinity_mask();
  sched_setaffinity(0, bytes_in(bound), as_set(bound));
  return allowed;
}

CoreShare share_cores(std::span<const CoreMask> masks, std::size_t mine, const CoreMask& allowed) {
  const auto ranks_where = [&](auto&& condition) {
    return static_cast<int>(std::count_if(masks.begin(), masks.end(), condition));
  };
  CoreShare share;
  const CoreMask& own = masks[mine];
  const int sharers =
      ranks_where([&](const CoreMask& other) { return count_cores(intersect(own, other)) > 0; });
  share.fair_threads = std::max(1, count_cores(own) / std::max(1, sharers));

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
