#pragma once

#include <mpi.h>

#include "cifar_mpi/comm/world.hpp"
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

}  // namespace cifar_mpi::comm
