#pragma once

#include <cstddef>
#include <vector>

#include "cifar_mpi/base/buffer.hpp"
#include "comm/mpi_handle.hpp"
#include "comm/staging_buffer.hpp"
#include "comm/world_access.hpp"

namespace cifar_mpi::comm {

/// One planned all-reduce: all its messages as persistent requests, advanced by `poll`.
///
/// The array is cut into P pieces and each piece into chunks; a message carries a chunk. Step k of 2·(P-1)
/// sends piece (r - k) mod P to the right and receives piece (r - k - 1) mod P from the left. In the first
/// P-1 steps the received piece is added to the own piece, afterwards it replaces it; step k+1 sends the
/// result. A chunk is forwarded as soon as it is added, while the next ones arrive: so the network hides the
/// additions, and the operands are still in the nearest cache.
///
/// The order of additions of an element depends on its piece alone, not on the chunks.
///
/// All messages between two neighbours, also of the next all-reduce, are sent and awaited in one order on one
/// communicator, and MPI never lets one overtake another, so a neighbour may be ahead.
///
/// With a 16-bit wire the partial sum is rounded before each hop, and the total once by the rank that
/// completes it, so that this rank has the same total as the others.
class RingOperation {
 public:
  RingOperation(const Neighbours& neighbours, StagingBuffer image);

  void start();
  bool poll();

 private:
  std::size_t index(std::size_t step) const;
  Range range(std::size_t step, std::size_t chunk) const;
  Range sent_by(std::size_t message) const { return range(message / chunks_, message % chunks_); }
  Range received_by(std::size_t message) const { return range(message / chunks_ + 1, message % chunks_); }
  std::byte* receive_buffer(std::size_t message) const;
  bool may_await(std::size_t message) const;
  void send(std::size_t message);
  bool finish_oldest_send();
  bool await_next();
  bool take_oldest_arrival();

  Neighbours neighbours_;
  StagingBuffer image_;
  std::size_t chunks_ = 1;  ///< per piece
  std::size_t adding_ = 0;  ///< received messages up to this one are added; later ones replace
  Buffer scratch_;
  std::size_t slot_bytes_ = 0;  ///< of the scratch, for one message each
  std::vector<Request> sends_;
  std::vector<Request> receives_;
  std::size_t sent_ = 0;     ///< sends that are done
  std::size_t sending_ = 0;  ///< sends that were started
  std::size_t awaited_ = 0;  ///< receives that were posted
  std::size_t arrived_ = 0;  ///< receives that are done and processed
};

}  // namespace cifar_mpi::comm
