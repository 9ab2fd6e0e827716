#include "comm/node_peers.hpp"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <utility>

#include "comm/mpi_check.hpp"

namespace cifar_mpi::comm {
namespace {

/// A handle of a process, or -1. (glibc 2.36 declares pidfd_open so that C++ cannot link it.)
int open_process(int pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

bool ended(int handle) {
  pollfd ask{handle, POLLIN, 0};
  return handle >= 0 && poll(&ask, 1, 0) == 1;
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
    Peer peer{static_cast<int>(entry[0]), -1};
    if (peer.pid != getpid() && entry[1] == mine[1]) peer.handle = open_process(peer.pid);
    peers_.push_back(peer);
  }
}

NodePeers::NodePeers(NodePeers&& other) noexcept : peers_(std::exchange(other.peers_, {})) {}

NodePeers& NodePeers::operator=(NodePeers&& other) noexcept {
  std::swap(peers_, other.peers_);
  return *this;
}

NodePeers::~NodePeers() {
  for (const Peer& peer : peers_) {
    if (peer.handle >= 0) close(peer.handle);
  }
}

bool NodePeers::gone(int node_rank) const {
  return ended(peers_[static_cast<std::size_t>(node_rank)].handle);
}

}  // namespace cifar_mpi::comm
