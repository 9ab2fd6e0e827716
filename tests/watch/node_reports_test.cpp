#include "watch/node_reports.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <limits>
#include <thread>

/// Made-up nodes on one machine, by loopback alone.
namespace cifar_mpi::watch {
namespace {

constexpr NodeReports::Token kToken{std::byte{7}, std::byte{9}};

Endpoint by_loopback(const NodeReports& node) {
  Endpoint endpoint = node.endpoint();
  endpoint.addresses = 1;
  endpoint.address[0] = htonl(INADDR_LOOPBACK);
  return endpoint;
}

using Received = std::vector<std::pair<std::size_t, NodeReport>>;

/// The reports that arrive within a second, or until there are `reports`.
Received receive(NodeReports& node, std::size_t reports) {
  Received received;
  for (int i = 0; i < 100 && received.size() < reports; ++i) {
    node.receive([&](std::size_t from, const NodeReport& report) { received.emplace_back(from, report); });
    if (received.size() < reports) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return received;
}

void send_from_outside(const Endpoint& to, const void* bytes, std::size_t size) {
  const int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<std::uint16_t>(to.port));
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::sendto(socket, bytes, size, 0, reinterpret_cast<const sockaddr*>(&at), sizeof at),
            static_cast<ssize_t>(size));
  ::close(socket);
}

TEST(NodeReports, ReachEveryOtherNode) {
  NodeReports a(0), b(2), c(5);
  a.connect({by_loopback(b), by_loopback(c)}, kToken);
  b.connect({by_loopback(a), by_loopback(c)}, kToken);
  c.connect({by_loopback(a), by_loopback(b)}, kToken);
  c.send(0.25, 7, "rank 5 on node3 has ended");
  for (NodeReports* node : {&a, &b}) {
    const Received received = receive(*node, 1);
    ASSERT_EQ(received.size(), 1u);
    EXPECT_EQ(received[0].first, 1u);
    EXPECT_EQ(received[0].second.node, 5);
    EXPECT_EQ(received[0].second.quiet, 0.25);
    EXPECT_EQ(received[0].second.code, 7);
    EXPECT_STREQ(received[0].second.text.data(), "rank 5 on node3 has ended");
  }
}

/// Another rank of the node reports, from a socket unknown to the others.
TEST(NodeReports, AnswerWhoeverSpeaksForANode) {
  NodeReports a(0), first_of_b(2), second_of_b(2);
  a.connect({by_loopback(first_of_b)}, kToken);
  second_of_b.connect({by_loopback(a)}, kToken);
  second_of_b.send(1.5);
  ASSERT_EQ(receive(a, 1).size(), 1u);
  a.send(std::numeric_limits<double>::infinity());
  const Received received = receive(second_of_b, 1);
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].second.quiet, std::numeric_limits<double>::infinity());
}

TEST(NodeReports, BelieveNothingThatAStrangerSends) {
  NodeReports a(0), b(2);
  a.connect({by_loopback(b)}, kToken);
  b.connect({by_loopback(a)}, kToken);
  NodeReport forged;
  forged.node = 2;
  forged.code = 7;
  forged.text.fill('x');
  send_from_outside(a.endpoint(), &forged, sizeof forged);  // without the token
  forged.token = kToken;
  send_from_outside(a.endpoint(), &forged, sizeof forged - 1);
  std::array<std::byte, 4096> garbage{};
  std::memcpy(garbage.data(), &forged, sizeof forged);
  send_from_outside(a.endpoint(), garbage.data(), garbage.size());
  send_from_outside(a.endpoint(), garbage.data(), 0);
  forged.node = 3;  // of no node of this job
  send_from_outside(a.endpoint(), &forged, sizeof forged);
  b.send(0.5);
  const Received received = receive(a, 1);
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].second.quiet, 0.5);
  EXPECT_EQ(received[0].second.code, 0);
  a.send(0.75);  // still goes to b
  EXPECT_EQ(receive(b, 1).size(), 1u);
}

TEST(NodeReports, EndATextThatIsTooLong) {
  NodeReports a(0), b(2);
  a.connect({by_loopback(b)}, kToken);
  b.connect({by_loopback(a)}, kToken);
  b.send(0.0, 7, std::string(3000, 'x'));
  const Received received = receive(a, 1);
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(std::strlen(received[0].second.text.data()), NodeReport::kText - 1);
}

/// The port is closed, or blocked by a firewall.
TEST(NodeReports, DoNotMindAPortThatDoesNotAnswer) {
  NodeReports a(0), b(5);
  Endpoint closed;
  {
    const NodeReports was(2);
    closed = by_loopback(was);
  }
  a.connect({closed, by_loopback(b)}, kToken);
  b.connect({by_loopback(a)}, kToken);
  for (int i = 0; i < 3; ++i) a.send(0.0);
  b.send(0.5);
  const Received received = receive(a, 1);
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].first, 1u);
}

}  // namespace
}  // namespace cifar_mpi::watch
