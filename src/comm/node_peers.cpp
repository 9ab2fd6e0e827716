#include "comm/node_peers.hpp"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>

#include "comm/mpi_check.hpp"

namespace cifar_mpi::comm {
namespace {

/// A handle of a process, empty if there is none. (glibc 2.36 declares pidfd_open so that C++ cannot link it.)
Descriptor open_process(int pid) { return Descriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))); }

bool ended(const Descriptor& handle) {
  pollfd ask{handle.get(), POLLIN, 0};
  return handle && poll(&ask, 1, 0) == 1;
}

}  // namespace

std::int64_t pid_namespace() {
  struct stat status {};
  return stat("/proc/self/ns/pid", &status) == 0 ? static_cast<std::int64_t>(status.st_ino) : 0;
}

NodePeers::NodePeers(MPI_Comm node) {
  int ranks = 0;
  check(MPI_Comm_size(node, &ranks), "asking for the node's number of ranks");
  using Entry = std::array<std::int64_t, 2>;
  const Entry mine{getpid(), pid_namespace()};
  std::vector<Entry> all(static_cast<std::size_t>(ranks));
  check(MPI_Allgather(mine.data(), 2, MPI_INT64_T, all.data(), 2, MPI_INT64_T, node),
        "gathering the processes of the node");
  for (const Entry& entry : all) {
    Peer& peer = peers_.emplace_back(Peer{static_cast<int>(entry[0]), {}});
    if (peer.pid != getpid() && entry[1] == mine[1]) peer.handle = open_process(peer.pid);
  }
}

bool NodePeers::gone(int node_rank) const {
  return ended(peers_[static_cast<std::size_t>(node_rank)].handle);
}

}  // namespace cifar_mpi::comm
