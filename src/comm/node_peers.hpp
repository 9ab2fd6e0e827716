#pragma once

#include <mpi.h>

#include <cstdint>
#include <vector>

#include "cifar_mpi/base/directory.hpp"

namespace cifar_mpi::comm {

/// Identifies the PID namespace; 0 if that is unknown.
std::int64_t pid_namespace();

/// The processes of the ranks of this node, as handles that later processes with the same PIDs do not match.
class NodePeers {
 public:
  NodePeers() = default;
  /// Collective over `node`.
  explicit NodePeers(MPI_Comm node);

  /// By node rank; as the process sees itself.
  int pid(int node_rank) const { return peers_[static_cast<std::size_t>(node_rank)].pid; }
  /// True if that process has ended, also as a zombie. Always false if it cannot be watched: in another
  /// container, or on a kernel before 5.3. May be called from any thread.
  bool gone(int node_rank) const;

 private:
  struct Peer {
    int pid = 0;
    Descriptor handle;  ///< a pidfd, which never refers to another process
  };

  std::vector<Peer> peers_;
};

}  // namespace cifar_mpi::comm
