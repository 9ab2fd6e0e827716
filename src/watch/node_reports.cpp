#include "watch/node_reports.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <type_traits>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::watch {
namespace {

static_assert(std::is_trivially_copyable_v<NodeReport> && std::is_trivially_copyable_v<Endpoint>);

/// Every IPv4 address of this machine, loopback last; senders find out which one they can reach.
std::vector<std::uint32_t> addresses_here() {
  std::vector<std::uint32_t> addresses, loopback;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return addresses;
  for (const ifaddrs* at = all; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET || (at->ifa_flags & IFF_UP) == 0)
      continue;
    sockaddr_in address{};
    std::memcpy(&address, at->ifa_addr, sizeof address);
    ((at->ifa_flags & IFF_LOOPBACK) != 0 ? loopback : addresses).push_back(address.sin_addr.s_addr);
  }
  freeifaddrs(all);
  addresses.resize(std::min(addresses.size(), Endpoint::kMostAddresses - 1));
  if (!loopback.empty()) addresses.push_back(loopback.front());
  return addresses;
}

sockaddr_in address_of(std::uint32_t address, std::uint32_t port) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<std::uint16_t>(port));
  at.sin_addr.s_addr = address;
  return at;
}

/// A port that the kernel chooses, on all addresses, because this process does not know which one the others
/// reach.
Descriptor open_socket(std::uint32_t& port) {
  Descriptor opened(::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_in at = address_of(htonl(INADDR_ANY), 0);
  socklen_t size = sizeof at;
  if (!opened || ::bind(opened.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0 ||
      ::getsockname(opened.get(), reinterpret_cast<sockaddr*>(&at), &size) != 0)
    return {};
  port = ntohs(at.sin_port);
  return opened;
}

}  // namespace

NodeReports::NodeReports(int node) {
  mine_.node = node;
  socket_ = open_socket(mine_.port);
  for (const std::uint32_t address : addresses_here()) mine_.address[mine_.addresses++] = address;
}

void NodeReports::connect(const std::vector<Endpoint>& others, const Token& token) {
  token_ = token;
  for (const Endpoint& other : others) {
    Peer& peer = peers_.emplace_back(Peer{other.node, {}});
    for (std::uint32_t i = 0; other.port != 0 && i < other.addresses; ++i)
      peer.at.push_back(address_of(other.address[i], other.port));
  }
}

void NodeReports::send(double quiet, int code, const std::string& text) {
  if (!socket_) return;
  NodeReport report;
  report.token = token_;
  report.node = mine_.node;
  report.code = code;
  report.quiet = quiet;
  text.copy(report.text.data(), report.text.size());
  for (const Peer& peer : peers_) {
    for (const sockaddr_in& at : peer.at)
      ::sendto(socket_.get(), &report, sizeof report, MSG_DONTWAIT | MSG_NOSIGNAL,
               reinterpret_cast<const sockaddr*>(&at), sizeof at);
  }
}

void NodeReports::receive(const std::function<void(std::size_t, const NodeReport&)>& take) {
  if (!socket_) return;
  for (std::size_t read = 0; read < 64 + 4 * peers_.size(); ++read) {
    std::array<std::byte, sizeof(NodeReport) + 1> bytes;  // one more byte reveals a datagram that is too long
    sockaddr_in from{};
    socklen_t size = sizeof from;
    const ssize_t length = ::recvfrom(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT,
                                      reinterpret_cast<sockaddr*>(&from), &size);
    if (length < 0 && errno == ECONNREFUSED) continue;  // of an earlier datagram
    if (length < 0) return;
    NodeReport report;
    if (static_cast<std::size_t>(length) != sizeof report) continue;
    std::memcpy(&report, bytes.data(), sizeof report);
    if (report.token != token_) continue;
    report.text.back() = '\0';  // the sender may not have terminated it
    const auto peer = std::ranges::find(peers_, report.node, &Peer::node);
    if (peer == peers_.end()) continue;
    peer->at.assign(1, from);
    take(static_cast<std::size_t>(peer - peers_.begin()), report);
  }
}

OtherNodes find_other_nodes(const comm::World& world, int node) {
  OtherNodes found;
  const std::vector<int> node_of = world.gather(node);
  std::map<int, std::vector<int>> ranks;
  for (std::size_t rank = 0; rank < node_of.size(); ++rank)
    ranks[node_of[rank]].push_back(static_cast<int>(rank));
  if (ranks.size() == 1) return found;

  found.link = std::make_unique<NodeReports>(node);
  NodeReports::Token token{};
  static_cast<void>(::getrandom(token.data(), token.size(), 0));
  world.broadcast(token);
  const std::vector<Endpoint> endpoints = world.gather(found.link->endpoint());

  std::vector<Endpoint> others;
  for (const auto& [first, members] : ranks) {
    if (first == node) continue;
    const std::string more = members.size() > 1 ? concat(" and ", members.size() - 1, " others") : "";
    found.nodes.push_back(
        {concat(world.hosts()[static_cast<std::size_t>(first)], " (rank ", first, more, ")")});
    found.first_ranks.push_back(first);
    others.push_back(endpoints[static_cast<std::size_t>(first)]);
  }
  found.link->connect(others, token);
  return found;
}

}  // namespace cifar_mpi::watch
