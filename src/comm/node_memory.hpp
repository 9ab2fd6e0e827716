#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/shared_file.hpp"

namespace cifar_mpi::comm {

/// Shared memory of the ranks of a node: a part and a counter per rank.
///
/// Only its own rank writes a counter, and counters only grow. A lock-free `std::atomic` is address-free, so
/// it works between processes; each has its own cache lines.
class NodeMemory {
 public:
  /// `bytes` for each rank. Collective over `node`: every rank makes it; each may destroy it at any time. The
  /// content is zero and, after a barrier over `node`, visible to all. Throws Error{comm} if MPI fails and
  /// Error{device} if there is no memory to share, on all ranks of the node.
  NodeMemory(MPI_Comm node, std::size_t bytes);
  /// The same over memory of another owner, which must outlive it: one part of `footprint(bytes)` per
  /// rank, aligned to 128 bytes. Ranks may then be threads.
  NodeMemory(int rank, std::vector<std::byte*> parts, std::size_t bytes);
  NodeMemory(const NodeMemory&) = delete;
  NodeMemory& operator=(const NodeMemory&) = delete;

  /// Allocates this rank's pages and zeroes them. False if the node has too few left. Call it once, before
  /// anything else.
  bool occupy();

  int rank() const { return rank_; }
  int ranks() const { return static_cast<int>(bases_.size()); }
  std::size_t bytes() const { return bytes_; }
  std::byte* data(int rank) const;
  std::atomic<std::uint64_t>& counter(int rank) const;

  /// The bytes of one rank's part.
  static std::uint64_t footprint(std::size_t bytes);

 private:
  std::size_t bytes_;
  int rank_ = 0;
  SharedFile file_;
  std::vector<std::byte*> bases_;  ///< by node rank, in this address space
};

}  // namespace cifar_mpi::comm
