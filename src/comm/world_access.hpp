#pragma once

#include <mpi.h>

#include "cifar_mpi/comm/world.hpp"
#include "comm/mpi_check.hpp"
#include "comm/mpi_handle.hpp"
#include "comm/node_peers.hpp"

namespace cifar_mpi::comm {

/// Access to a World's communicators for the collectives only. All communicators return errors instead of
/// ending the program; `check` turns them into Error{comm}.
struct WorldAccess {
  static MPI_Comm all(const World& world);   ///< every rank, in rank order; for MPI calls of the World itself
  static MPI_Comm node(const World& world);  ///< the ranks of this host
  static const NodePeers& peers(const World& world);  ///< the processes of this host's ranks
  /// A separate communicator for a collective, so that its messages cannot mix with others. Collective call.
  static Communicator duplicate(const World& world);
  /// A communicator of the ranks with the same `group`, in rank order; empty if it is negative.
  /// Collective call over all ranks.
  static Communicator split(const World& world, int group);
};

/// A communicator and the calling rank's place in it, also as a ring.
struct Neighbours {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int ranks = 1;
  bool network = false;  ///< its messages cross from node to node

  int right() const { return (rank + 1) % ranks; }
  int left() const { return (rank + ranks - 1) % ranks; }
};

inline Neighbours neighbours_in(MPI_Comm comm, bool network) {
  Neighbours neighbours{comm};
  neighbours.network = network;
  check(MPI_Comm_rank(comm, &neighbours.rank), "asking for the place among the ranks");
  check(MPI_Comm_size(comm, &neighbours.ranks), "asking for the number of ranks");
  return neighbours;
}

}  // namespace cifar_mpi::comm
