#pragma once

#include <mpi.h>

#include <cstdint>
#include <vector>

namespace cifar_mpi::comm {

/// Names the space in which process numbers mean something; 0 where it cannot be asked for.
std::int64_t pid_namespace();

/// The processes of the ranks of this node, to be told apart from others that get their numbers later.
class NodePeers {
 public:
  NodePeers() = default;
  /// Collective over `node`.
  explicit NodePeers(MPI_Comm node);
  ~NodePeers();
  NodePeers(NodePeers&& other) noexcept;
  NodePeers& operator=(NodePeers&& other) noexcept;
  NodePeers(const NodePeers&) = delete;
  NodePeers& operator=(const NodePeers&) = delete;

  /// By node rank; as the process sees itself.
  int pid(int node_rank) const { return peers_[static_cast<std::size_t>(node_rank)].pid; }
  /// True when that process has ended, also when its parent has not yet asked for its status. Always false
  /// for one that cannot be watched: in another container, or on a kernel before 5.3. May be called from any
  /// thread.
  bool gone(int node_rank) const;

 private:
  struct Peer {
    int pid = 0;
    int handle = -1;  ///< a pidfd; stays with the process when its number is given to another
  };

  std::vector<Peer> peers_;
};

}  // namespace cifar_mpi::comm
