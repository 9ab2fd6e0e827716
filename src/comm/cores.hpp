#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

/// The cores that a process may run on, and how the ranks of a node share them. A core here is a CPU in the
/// sense of Linux: with simultaneous multithreading one physical core counts as several.
namespace cifar_mpi::comm {

/// Bit i mod 64 of word i/64 is core i.
using CoreMask = std::vector<std::uint64_t>;

int count_cores(const CoreMask& mask);

/// As long as the shorter one.
CoreMask intersect(const CoreMask& a, const CoreMask& b);

bool have_common_cores(const CoreMask& a, const CoreMask& b);

/// The cores the calling thread may run on.
CoreMask affinity_mask();
/// The cores it could request: those of its container or job, independent of the launcher's binding.
CoreMask allowed_mask();

/// The CPU quota, in cores, of the cgroup of this process and those above it (cpu.max of version 2,
/// cpu.cfs_quota_us of version 1); empty without a limit. The defaults of the arguments are Linux's paths.
std::optional<double> cpu_quota(const std::filesystem::path& groups = "/sys/fs/cgroup",
                                const std::filesystem::path& own_groups = "/proc/self/cgroup");

/// The busy seconds of the cores of a mask since the machine started, for all processes; the work of other
/// virtual machines counts, too.
double busy_seconds(const CoreMask& mask);

/// The share of one rank.
struct CoreShare {
  int cores = 1;    ///< of its mask
  int sharers = 1;  ///< ranks whose masks overlap with this one, itself included
  /// cores / sharers, and no more than the quota divided by the ranks of the node; at least 1.
  int fair_threads = 1;
  int unused_cores = 0;  ///< cores of `allowed` that are in no rank's mask
  /// Somewhere on this node ranks outnumber the cores they have; the same on all ranks of the node.
  bool oversubscribed = false;
};

/// `masks` has the mask of every rank of the node, all of one length; `mine` is this rank's index, `quota`
/// the quota of all of them together.
CoreShare share_cores(std::span<const CoreMask> masks, std::size_t mine, const CoreMask& allowed,
                      std::optional<double> quota = {});

}  // namespace cifar_mpi::comm
