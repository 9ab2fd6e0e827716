#pragma once

#include <netinet/in.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cifar_mpi/comm/world.hpp"
#include "watch/stall.hpp"

/// What the watchdogs of a job's nodes tell each other once a second, past MPI and past every rank that hangs.
///
/// By UDP, each node to each other one: nothing is connected, so nothing can refuse, block or need a middleman that may be
/// stopped itself. A report that is lost is replaced a second later. Every process has a socket of its own, and the one
/// that speaks for its node uses it; an answer goes to where the last report came from. Of N nodes each sends and receives
/// N - 1 datagrams a second, which costs nothing up to many hundreds of nodes.
namespace cifar_mpi::watch {

/// One report, as it travels; between processes of one build.
struct NodeReport {
  static constexpr std::size_t kText = 400;

  std::array<std::byte, 16> token{};  ///< the job's; a datagram with another one is dropped
  std::int32_t node = 0;              ///< its lowest rank
  std::int32_t code = 0;              ///< exit code once the node ends the job, else 0
  double quiet = 0.0;                 ///< StallJudge::quiet
  std::array<char, kText> text{};     ///< with a code: who is to blame; cut where it is longer
};

/// Where a process can be reached, and for which node it would speak.
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

  /// Opens the socket. Where that fails nothing is sent or received, which is no error: a node of which nothing is heard
  /// is judged more patiently.
  explicit NodeReports(int node);
  ~NodeReports();
  NodeReports(const NodeReports&) = delete;
  NodeReports& operator=(const NodeReports&) = delete;

  Endpoint endpoint() const { return mine_; }
  /// The other nodes, in the order of `others`; each is addressed at its first endpoint until it has reported.
  void connect(const std::vector<Endpoint>& others, const Token& token);

  /// To all other nodes. Does not wait.
  void send(double quiet, int code = 0, const std::string& text = {});
  /// Calls `take(index of the node, report)` for all reports that have come. Does not wait, and reads no more than a few
  /// per node.
  void receive(const std::function<void(std::size_t, const NodeReport&)>& take);

 private:
  struct Peer {
    std::int32_t node = 0;
    std::vector<sockaddr_in> at;  ///< all that it may have; the one it has reported from, once it has
  };

  Endpoint mine_;
  int socket_ = -1;
  Token token_{};
  std::vector<Peer> peers_;
};

/// The nodes other than this one, and a link to their watchdogs; without one (null) where there are none.
struct OtherNodes {
  std::vector<OtherNode> nodes;
  std::vector<int> first_ranks;  ///< of each
  std::unique_ptr<NodeReports> link;
};

/// Collective. `node` is the lowest rank whose heartbeats this rank sees: ranks that see the same ones are a node here.
OtherNodes find_other_nodes(const comm::World& world, int node);

}  // namespace cifar_mpi::watch
