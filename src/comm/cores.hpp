#pragma once

#include <cstdint>
#include <span>
#include <vector>

/// Which cores a process may run on, and how the ranks of a node share them. A core here is what Linux calls
/// a CPU: with simultaneous multithreading one physical core counts as several.
namespace cifar_mpi::comm {

/// Bit i of word i/64 stands for core i.
using CoreMask = std::vector<std::uint64_t>;

int count_cores(const CoreMask& mask);

/// The cores the calling thread may run on.
CoreMask affinity_mask();
/// The cores it could ask for: those of its container or job, whatever the launcher has bound it to.
CoreMask allowed_mask();

/// The share of one rank.
struct CoreShare {
  int fair_threads = 1;  ///< cores of its mask / ranks whose mask has any core in common with it, at least 1
  int unused_cores = 0;  ///< cores of `allowed` that are in no rank's mask
  /// Somewhere on this node ranks outnumber the cores they have; the same on all ranks of the node.
  bool oversubscribed = false;
};

/// `masks` has the mask of every rank of the node, all of one length; `mine` is this rank's place among them.
CoreShare share_cores(std::span<const CoreMask> masks, std::size_t mine, const CoreMask& allowed);

}  // namespace cifar_mpi::comm
