#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "comm/node_memory.hpp"
#include "comm/ring_operation.hpp"

namespace cifar_mpi::comm {

/// Memory from `allocate`, and the number of all-reduces started in it.
struct WindowBlock {
  WindowBlock(MPI_Comm node, std::size_t bytes) : memory(node, bytes) {}
  WindowBlock(int rank, std::vector<std::byte*> parts, std::size_t bytes)
      : memory(rank, std::move(parts), bytes) {}

  NodeMemory memory;
  std::uint64_t runs = 0;
};

/// How the ranks of a world divide an array.
struct WindowPlace {
  int owners = 1;     ///< the ranks of each node that own a slice: as many as the smallest node has
  Neighbours across;  ///< of an owner: the ring of the owners of the same slice on all nodes
};

/// One planned all-reduce in a block, advanced by `poll`.
///
/// The array is cut into one slice per owner. In run s (1, 2, …) of its block a rank
///   1. stores 2s-1 into its counter: its own values are in place;
///   2. when all counters of the node are at least 2s-1 and it owns slice i, adds slice i of all ranks of the
///      node, in rank order; sums that with the owners of slice i on the other nodes, if there are any; and
///      writes the total into slice i of every rank's array;
///   3. stores 2s: it touches no other rank's array any more;
///   4. is done when all counters of the node are at least 2s.
///
/// This is free of races. Stores to the counters are releases, loads are acquires, and counters only grow, so
/// a rank that reads v or more sees everything that the owner did before it stored v.
///   - An owner reads another rank's values after it has loaded that rank's 2s-1, which was stored after the
///     values were written. Overwriting them is safe, too: the rank stored 2s-1 after its last access to
///     them.
///   - No two ranks write the same slice, and between 1 and 4 a rank touches no slice that it does not own:
///     so the total has one writer and until 4 no other reader.
///   - A rank reads the totals after it has loaded 2s of all ranks, which each stored after writing its
///     total.
///   - A rank writes new values, for run s+1, after it is done with run s, so after it has loaded 2s of every
///     rank; that was stored after the last access to this rank's array, and no rank accesses it again before
///     this rank has stored 2s+1.
///   - A rank may be a phase ahead: a counter that is awaited at 2s-1 may be 2s or 2s+1 already. "At least"
///     is enough: a rank stores 2s only when it needs nothing more from the waiting rank but its 2s, and
///     stores 2s+1 only after the waiting rank has stored 2s. Counters are never reset.
/// Only its own rank stores a counter, so that rank's view of it needs no ordering. The thread sanitizer,
/// which does not work across processes, finds no race when threads act as ranks: see
/// WindowOperation.KeepsThreadsApartAsItKeepsRanks.
class WindowOperation {
 public:
  /// `data` is in this rank's part of `block`, at the same offset on all ranks, and not empty. Does not
  /// communicate. `wire` is used between nodes; the first `fp32_prefix` floats of `data` are sent as fp32.
  /// Throws Error{usage} if a slice is too long for one MPI message.
  WindowOperation(const WindowPlace& place, WindowBlock& block, std::span<float> data, Wire wire,
                  std::size_t fp32_prefix);

  void start();
  bool poll();

 private:
  enum class Phase { arriving, crossing, leaving, done };

  float* slice_of(int node_rank) const;
  bool all_reached(std::uint64_t value);
  void add_slices();
  void broadcast(std::size_t at, const float* total, std::size_t count);

  WindowBlock& block_;
  std::size_t begin_ = 0;  ///< bytes from the start of a rank's part to the slice this rank owns
  std::size_t count_ = 0;  ///< floats in it; 0 when this rank owns none
  std::optional<RingOperation> across_;
  Phase phase_ = Phase::done;
  std::uint64_t run_ = 0;
  int reached_ = 0;  ///< ranks known to have reached the awaited value
};

}  // namespace cifar_mpi::comm
