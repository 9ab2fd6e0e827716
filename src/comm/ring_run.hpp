#pragma once

#include <mpi.h>

#include <cstddef>
#include <span>
#include <vector>

#include "cifar_mpi/base/buffer.hpp"
#include "comm/mpi_handle.hpp"

namespace cifar_mpi::comm {

/// Where a rank stands in the ring.
struct Place {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int ranks = 1;

  int right() const { return (rank + 1) % ranks; }
  int left() const { return (rank + ranks - 1) % ranks; }
};

/// The calling rank's place in a ring of all ranks of `comm`.
Place ring_place(MPI_Comm comm);

/// One planned all-reduce: all its messages as persistent requests, moved forward by `poll`.
///
/// Step k of 2·(P-1) sends piece (r - k) mod P to the right and receives piece (r - k - 1) mod P from the
/// left. In the first P-1 steps what arrives is added to the own piece, afterwards it replaces it; either way
/// it is what step k+1 sends. All messages between two neighbours, also of the next all-reduce, are sent and
/// awaited in one order on one communicator, and MPI never lets one overtake another, so that a neighbour may
/// be ahead without confusion.
class RingRun {
 public:
  RingRun(const Place& place, std::span<float> data);

  void start();
  bool poll();

 private:
  std::span<float> piece(int step) const;
  std::span<float> landing(int step) const;
  bool may_await(int step) const;
  bool finish_oldest_send();
  bool await_next();
  bool take_oldest_arrival();

  Place place_;
  std::span<float> data_;
  int steps_ = 0;
  Buffer scratch_;
  std::size_t longest_ = 0;  ///< floats of the longest piece, one slot of the scratch
  std::vector<Request> sends_;
  std::vector<Request> receives_;
  int sent_ = 0;     ///< sends that are done
  int sending_ = 0;  ///< sends that were started
  int awaited_ = 0;  ///< receives that were posted
  int arrived_ = 0;  ///< receives that are done and digested
};

}  // namespace cifar_mpi::comm
