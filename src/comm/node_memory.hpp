#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/shared_file.hpp"

namespace cifar_mpi::comm {

/// Memory of every rank of a node that all of them can reach, with one counter per rank.
///
/// A counter is written by its own rank only, and only grows. `std::atomic` is address-free where it is
/// lock-free, so it works between processes; each stands alone on its cache lines.
class NodeMemory {
 public:
  /// `bytes` for each rank. Collective over `node`: every rank makes it, and drops it when it likes. The
  /// content is zero and, after a barrier over `node`, visible to all. Throws Error{comm} when MPI fails and
  /// Error{device} when there is no memory to share, on all ranks of the node.
  NodeMemory(MPI_Comm node, std::size_t bytes);
  /// The same over memory that belongs to somebody else and outlives it: one part of `footprint(bytes)` per
  /// rank, aligned to 128 bytes. Ranks may then be threads.
  NodeMemory(int rank, std::vector<std::byte*> parts, std::size_t bytes);
  NodeMemory(const NodeMemory&) = delete;
  NodeMemory& operator=(const NodeMemory&) = delete;

  /// Takes this rank's pages and zeroes them. False when the node has too few left. To be called once, before
  /// anything else.
  bool occupy();

  int rank() const { return rank_; }
  int ranks() const { return static_cast<int>(bases_.size()); }
  std::size_t bytes() const { return bytes_; }
  std::byte* data(int rank) const;
  std::atomic<std::uint64_t>& counter(int rank) const;

  /// What one rank's part takes.
  static std::uint64_t footprint(std::size_t bytes);

 private:
  std::size_t bytes_;
  int rank_ = 0;
  SharedFile file_;
  std::vector<std::byte*> bases_;  ///< by node rank, as seen from here
};

}  // namespace cifar_mpi::comm
