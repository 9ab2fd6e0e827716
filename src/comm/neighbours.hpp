#pragma once

#include <mpi.h>

namespace cifar_mpi::comm {

/// A communicator and the calling rank's place in it, also as a ring.
struct Neighbours {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int ranks = 1;
  bool network = false;  ///< its messages cross from node to node

  int right() const { return (rank + 1) % ranks; }
  int left() const { return (rank + ranks - 1) % ranks; }
};

Neighbours neighbours_in(MPI_Comm comm, bool network);

}  // namespace cifar_mpi::comm
