#include "forecast/all_reduce.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>

#include "comm/collectives.hpp"

namespace cifar_mpi::forecast {
namespace {

constexpr double kFloat = sizeof(float);

/// The cost of a message.
struct Edge {
  double takes = 0.0;     ///< from its start to its arrival
  double occupies = 0.0;  ///< before the sender's next message can start
};

Edge edge(const Cluster& cluster, double bytes, int flows) {
  if (flows > 0) return {cluster.links.seconds(bytes, flows), cluster.links.occupied_s(bytes, flows)};
  const double copied = 2.0 * bytes / cluster.links.memory_bytes_per_s;  // read and written
  return {copied, copied};
}

/// Reads two arrays and writes one.
double add_s(const Cluster& cluster, double floats) {
  return 3.0 * kFloat * floats / cluster.links.memory_bytes_per_s;
}

/// Places 0, 1, … of a ring; place i sends over edges[i] to place i + 1. A place sends one message per chunk and round:
/// as soon as it has added the chunk that arrived in the round before, and its link is free.
void ring(const std::vector<Edge>& edges, std::size_t chunks, double chunk_add_s, std::vector<double>& when) {
  const std::size_t places = when.size();
  if (places < 2) return;
  std::vector<std::vector<double>> have(chunks, when);
  std::vector<double> free = when, arrives(places);
  for (std::size_t round = 0; round < 2 * (places - 1); ++round) {
    const double add = round < places - 1 ? chunk_add_s : 0.0;
    for (std::vector<double>& own : have) {
      double* const at = own.data();
      double* const link = free.data();
      double* const to = arrives.data();
      for (std::size_t i = 0; i < places; ++i) {
        const double start = std::max(at[i], link[i]);
        link[i] = start + edges[i].occupies;
        to[i] = start + edges[i].takes + add;
      }
      own[0] = to[places - 1];
      std::copy(to, to + places - 1, at + 1);
    }
  }
  for (std::size_t i = 0; i < places; ++i) when[i] = std::max(have.back()[i], free[i]);
}

void ring_of_ranks(double floats, double float_bytes, const Cluster& cluster, std::vector<double>& when) {
  const double piece = floats / cluster.ranks;
  const std::size_t chunks = comm::ring_chunks(static_cast<std::size_t>(piece), cluster.nodes() > 1);
  const double chunk = piece / static_cast<double>(chunks);
  std::vector<Edge> edges(when.size());
  for (std::size_t r = 0; r < edges.size(); ++r) {
    const bool last_of_node =
        (r + 1) % static_cast<std::size_t>(cluster.per_node) == 0 || r + 1 == edges.size();
    edges[r] = edge(cluster, chunk * float_bytes, last_of_node && cluster.nodes() > 1 ? 1 : 0);
  }
  ring(edges, chunks, add_s(cluster, chunk), when);
}

/// Each rank of a node adds one slice of the node's arrays, sums it around a ring of nodes, and writes it to all arrays of the
/// node.
void two_level(double floats, double float_bytes, const Cluster& cluster, std::vector<double>& when) {
  const auto per_node = static_cast<std::size_t>(cluster.per_node);
  const int owners = cluster.owners();
  const double slice = floats / owners;
  const double memory_s = kFloat * slice * (cluster.per_node + 1) / cluster.links.memory_bytes_per_s;
  const bool shares = cluster.per_node > 1;
  std::vector<double> nodes(static_cast<std::size_t>(cluster.nodes()), 0.0);
  for (std::size_t r = 0; r < when.size(); ++r) nodes[r / per_node] = std::max(nodes[r / per_node], when[r]);
  for (double& node : nodes) node += shares ? memory_s : 0.0;
  const double piece = slice / static_cast<double>(nodes.size());
  const std::size_t chunks = comm::ring_chunks(static_cast<std::size_t>(piece), true);
  const double chunk = piece / static_cast<double>(chunks);
  ring(std::vector<Edge>(nodes.size(), edge(cluster, chunk * float_bytes, owners)), chunks,
       add_s(cluster, chunk), nodes);
  for (std::size_t r = 0; r < when.size(); ++r) when[r] = nodes[r / per_node] + (shares ? memory_s : 0.0);
}

/// In each exchange, both ranks of a pair receive the other's array and add it.
class Doubling {
 public:
  Doubling(double floats, double float_bytes, const Cluster& cluster, std::vector<double>& when)
      : cluster_(cluster), bytes_(floats * float_bytes), add_s_(add_s(cluster, floats)), when_(when) {
    parts_ = static_cast<std::size_t>(std::bit_floor(static_cast<unsigned>(cluster.ranks)));
    pairs_ = when.size() - parts_;
  }

  void run() {
    for (std::size_t p = 0; p < pairs_; ++p)
      when_[2 * p] = std::max(when_[2 * p], when_[2 * p + 1] + one_way_s(2 * p)) + add_s_;
    for (std::size_t distance = 1; distance < parts_; distance *= 2) exchange(distance);
    for (std::size_t p = 0; p < pairs_; ++p) when_[2 * p + 1] = when_[2 * p] += one_way_s(2 * p);
  }

 private:
  std::size_t rank_of(std::size_t part) const { return part < pairs_ ? 2 * part : part + pairs_; }
  std::size_t node_of(std::size_t rank) const { return rank / static_cast<std::size_t>(cluster_.per_node); }

  /// Seconds of a message from or to the odd rank of a pair.
  double one_way_s(std::size_t even) const {
    return edge(cluster_, bytes_, node_of(even) == node_of(even + 1) ? 0 : 1).takes;
  }

  void exchange(std::size_t distance) {
    const auto crosses = [&](std::size_t part) {
      return node_of(rank_of(part)) != node_of(rank_of(part ^ distance));
    };
    std::vector<int> flows(static_cast<std::size_t>(cluster_.nodes()), 0);
    for (std::size_t part = 0; part < parts_; ++part) flows[node_of(rank_of(part))] += crosses(part) ? 1 : 0;
    for (std::size_t part = 0; part < parts_; ++part) {
      if ((part & distance) != 0) continue;
      double& a = when_[rank_of(part)];
      double& b = when_[rank_of(part ^ distance)];
      const int busiest = std::max(flows[node_of(rank_of(part))], flows[node_of(rank_of(part ^ distance))]);
      a = b = std::max(a, b) + edge(cluster_, bytes_, crosses(part) ? busiest : 0).takes + add_s_;
    }
  }

  const Cluster& cluster_;
  double bytes_;
  double add_s_;
  std::vector<double>& when_;
  std::size_t parts_ = 1, pairs_ = 0;
};

}  // namespace

void all_reduce(Pattern pattern, double floats, double float_bytes, const Cluster& cluster,
                std::vector<double>& when) {
  switch (pattern) {
    case Pattern::ring:
      return ring_of_ranks(floats, float_bytes, cluster, when);
    case Pattern::doubling:
      return Doubling(floats, float_bytes, cluster, when).run();
    case Pattern::two_level:
      return two_level(floats, float_bytes, cluster, when);
  }
}

double all_reduce_seconds(Pattern pattern, double floats, double float_bytes, const Cluster& cluster) {
  std::vector<double> when(static_cast<std::size_t>(cluster.ranks), 0.0);
  all_reduce(pattern, floats, float_bytes, cluster, when);
  return *std::max_element(when.begin(), when.end());
}

}  // namespace cifar_mpi::forecast
