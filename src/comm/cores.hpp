#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

/// Which cores a process may run on, and how the ranks of a node share them. A core here is what Linux calls
/// a CPU: with simultaneous multithreading one physical core counts as several.
namespace cifar_mpi::comm {

/// Bit i of word i/64 stands for core i.
using CoreMask = std::vector<std::uint64_t>;

int count_cores(const CoreMask& mask);

/// As long as the shorter one.
CoreMask intersect(const CoreMask& a, const CoreMask& b);

bool have_common_cores(const CoreMask& a, const CoreMask& b);

/// The cores the calling thread may run on.
CoreMask affinity_mask();
/// The cores it could ask for: those of its container or job, whatever the launcher has bound it to.
CoreMask allowed_mask();

/// Cores' worth of time that the cgroup of this process and those above it may use (cpu.max of version 2, cpu.cfs_quota_us of
/// version 1); none where nothing limits it. The arguments are where Linux has them.
std::optional<double> cpu_quota(const std::filesystem::path& groups = "/sys/fs/cgroup",
                                const std::filesystem::path& own_groups = "/proc/self/cgroup");

/// Seconds for which the cores of a mask have been at work since the machine started, whoever it was for; other virtual machines'
/// work on them counts too.
double busy_seconds(const CoreMask& mask);

/// The share of one rank.
struct CoreShare {
  int cores = 1;    ///< of its mask
  int sharers = 1;  ///< ranks whose mask has any core in common with it, itself included
  /// cores / sharers, and no more than the quota divided by the ranks of the node; at least 1.
  int fair_threads = 1;
  int unused_cores = 0;  ///< cores of `allowed` that are in no rank's mask
  /// Somewhere on this node ranks outnumber the cores they have; the same on all ranks of the node.
  bool oversubscribed = false;
};

/// `masks` has the mask of every rank of the node, all of one length; `mine` is this rank's place among them, `quota` what they
/// have together.
CoreShare share_cores(std::span<const CoreMask> masks, std::size_t mine, const CoreMask& allowed,
                      std::optional<double> quota = {});

}  // namespace cifar_mpi::comm
