#pragma once

#include <netinet/in.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cifar_mpi/base/directory.hpp"
#include "cifar_mpi/comm/world.hpp"
#include "watch/stall.hpp"

/// The reports that the watchdogs of a job's nodes exchange once a second, independent of MPI and of ranks that hang.
///
/// Each node sends UDP datagrams to each other node: there is no connection that can fail or block, and no
/// relay that can be stopped. The next report replaces a lost one. Every process has a socket; only the one
/// that reports for its node uses it. Replies go to the source of the last report. With N nodes, each sends
/// and receives N - 1 datagrams a second, a negligible cost up to many hundreds of nodes.
namespace cifar_mpi::watch {

/// A report as it is sent; all processes are of the same build.
struct NodeReport {
  static constexpr std::size_t kText = 400;

  std::array<std::byte, 16> token{};  ///< the job's; a datagram with another one is dropped
  std::int32_t node = 0;              ///< its lowest rank
  std::int32_t code = 0;              ///< exit code once the node ends the job, else 0
  double quiet = 0.0;                 ///< StallJudge::quiet
  std::array<char, kText> text{};     ///< with a code: which rank hangs, truncated to fit
};

/// The addresses of a process, and the node it would report for.
struct Endpoint {
  static constexpr std::size_t kMostAddresses = 8;

  std::int32_t node = 0;   ///< its lowest rank
  std::uint32_t port = 0;  ///< 0: no socket
  std::uint32_t addresses = 0;
  std::array<std::uint32_t, kMostAddresses> address{};  ///< IPv4, as in in_addr
};

class NodeReports {
 public:
  using Token = std::array<std::byte, 16>;

  /// Opens the socket. If that fails, nothing is sent or received. That is not an error: nodes without
  /// reports get more time.
  explicit NodeReports(int node);

  Endpoint endpoint() const { return mine_; }
  /// The other nodes, in the order of `others`; each is addressed at its first endpoint until it has reported.
  void connect(const std::vector<Endpoint>& others, const Token& token);

  /// Sends to all other nodes. Does not wait.
  void send(double quiet, int code = 0, const std::string& text = {});
  /// Calls `take(index of the node, report)` for the reports that have arrived, at most a few per node. Does not wait.
  void receive(const std::function<void(std::size_t, const NodeReport&)>& take);

 private:
  struct Peer {
    std::int32_t node = 0;
    std::vector<sockaddr_in>
        at;  ///< all its possible addresses; after its first report, only the source of that report
  };

  Endpoint mine_;
  Descriptor socket_;
  Token token_{};
  std::vector<Peer> peers_;
};

/// The nodes other than this one, and a link to their watchdogs (null if there are none).
struct OtherNodes {
  std::vector<OtherNode> nodes;
  std::vector<int> first_ranks;  ///< of each
  std::unique_ptr<NodeReports> link;
};

/// Collective. `node` is the lowest rank whose heartbeats this rank sees; ranks that see the same heartbeats
/// form a node here.
OtherNodes find_other_nodes(const comm::World& world, int node);

}  // namespace cifar_mpi::watch
