#include "forecast/all_reduce.hpp"

#include <algorithm>
#include <deque>
#include <set>
#include <utility>

#include "comm/collectives.hpp"

namespace cifar_mpi::forecast {
namespace {

/// The cost of a message.
struct Edge {
  double takes = 0.0;     ///< from its start to its arrival
  double occupies = 0.0;  ///< before the sender's next message can start
};

Edge edge(const Cluster& cluster, double bytes, int flows) {
  if (flows > 0) return {cluster.links.seconds(bytes, flows), cluster.links.occupied_s(bytes, flows)};
  const double copied = cluster.links.copy_s(bytes);
  return {copied, copied};
}

/// A round of a ring for each of its chunks: place i sends over edges[i] to place i + 1, as soon as it has added the chunk that
/// arrived in the round before, and its link is free.
void ring_round(const std::vector<Edge>& edges, double add_s, std::vector<std::vector<double>>& have,
                std::vector<double>& free) {
  std::vector<double> arrives(edges.size());
  for (std::vector<double>& at : have) {
    for (std::size_t i = 0; i < edges.size(); ++i) {
      const double start = std::max(at[i], free[i]);
      free[i] = start + edges[i].occupies;
      arrives[(i + 1) % edges.size()] = start + edges[i].takes + add_s;
    }
    at = arrives;
  }
}

/// P - 1 rounds of a ring of P places with one chunk, in O(P) for each value of `occupies` (two at most here). Replaces the times
/// in `start`, at which each place sends its first message, by those at which it sends its P-th.
///
/// In each round the latest chain of messages moves to the next place, or stays and waits for the link. If it moves j times, it
/// stays P - 1 - j times, best where the link is occupied longest. So place i starts at the maximum, over j < P and the places v
/// from i - j to i, of start(i - j) + takes of the messages from i - j to i + (P - 1 - j) occupies(v). For each value of
/// `occupies`, a queue holds the candidates for i - j.
void pass_around(const std::vector<Edge>& edges, double add_s, std::vector<double>& start) {
  const auto places = static_cast<std::ptrdiff_t>(edges.size());
  std::vector<double> moved(edges.size() + 1), ends = start;  // moved: from place 0
  std::set<double> occupies;
  for (std::size_t i = 0; i < edges.size(); ++i) {
    moved[i + 1] = moved[i] + edges[i].takes + add_s;
    occupies.insert(edges[i].occupies);
  }
  for (const double stay_s : occupies) {
    const auto value = [&](std::ptrdiff_t u) {
      const auto at = static_cast<std::size_t>(u < 0 ? u + places : u);
      return start[at] - (u < 0 ? moved[at] - moved.back() : moved[at]) + static_cast<double>(u) * stay_s;
    };
    std::deque<std::pair<double, std::ptrdiff_t>> best;  // values descend, places ascend
    std::ptrdiff_t next = 1 - places, stays = -1;
    while (edges[static_cast<std::size_t>(stays + places)].occupies != stay_s) --stays;
    for (std::ptrdiff_t i = 0; i < places; ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (edges[at].occupies == stay_s) stays = i;
      for (; next <= stays; ++next) {
        while (!best.empty() && best.back().first <= value(next)) best.pop_back();
        best.emplace_back(value(next), next);
      }
      while (best.front().second <= i - places) best.pop_front();
      const double end = best.front().first + moved[at] + static_cast<double>(places - 1 - i) * stay_s;
      ends[at] = std::max(ends[at], end);
    }
  }
  start = ends;
}

/// Replaces the time at which each place is ready for the ring by the time at which the ring ends there.
void ring(const std::vector<Edge>& edges, std::size_t chunks, double chunk_add_s, std::vector<double>& when) {
  const std::size_t places = when.size();
  if (places < 2) return;
  if (chunks == 1) {
    pass_around(edges, chunk_add_s, when);
    return pass_around(edges, 0.0, when);
  }
  std::vector<std::vector<double>> have(chunks, when);
  std::vector<double> free = when;
  for (std::size_t i = 0; i < 2 * (places - 1); ++i)
    ring_round(edges, i < places - 1 ? chunk_add_s : 0.0, have, free);
  for (std::size_t i = 0; i < places; ++i) when[i] = std::max(have.back()[i], free[i]);
}

void ring_of_ranks(double floats, double float_bytes, const Cluster& cluster, std::vector<double>& when) {
  const bool network = cluster.nodes() > 1;
  const RingChunks chunks = ring_chunks(floats, cluster.ranks, network);
  std::vector<Edge> edges(when.size());
  for (std::size_t r = 0; r < edges.size(); ++r) {
    const bool last_of_node =
        (r + 1) % static_cast<std::size_t>(cluster.per_node) == 0 || r + 1 == edges.size();
    edges[r] = edge(cluster, chunks.floats * float_bytes, last_of_node && network ? 1 : 0);
  }
  ring(edges, chunks.count, cluster.links.add_s(chunks.floats), when);
}

/// Each rank of a node adds one slice of the node's arrays, sums it around a ring of nodes, and writes it to all arrays of the
/// node.
void two_level(double floats, double float_bytes, const Cluster& cluster, std::vector<double>& when) {
  const auto per_node = static_cast<std::size_t>(cluster.per_node);
  const int owners = cluster.owners();
  std::vector<double> nodes(static_cast<std::size_t>(cluster.nodes()), 0.0);
  for (std::size_t r = 0; r < when.size(); ++r) nodes[r / per_node] = std::max(nodes[r / per_node], when[r]);
  for (double& node : nodes) node += cluster.slice_s(floats);
  const RingChunks chunks = ring_chunks(floats / owners, cluster.nodes(), true);
  ring(std::vector<Edge>(nodes.size(), edge(cluster, chunks.floats * float_bytes, owners)), chunks.count,
       cluster.links.add_s(chunks.floats), nodes);
  for (std::size_t r = 0; r < when.size(); ++r) when[r] = nodes[r / per_node] + cluster.slice_s(floats);
}

}  // namespace

RingChunks ring_chunks(double floats, int places, bool network) {
  const double piece = floats / places;
  const std::size_t count = comm::ring_chunks(static_cast<std::size_t>(piece), network);
  return {count, piece / static_cast<double>(count)};
}

void all_reduce(Pattern pattern, double floats, double float_bytes, const Cluster& cluster,
                std::vector<double>& when) {
  switch (pattern) {
    case Pattern::ring:
      return ring_of_ranks(floats, float_bytes, cluster, when);
    case Pattern::doubling:
      return doubling(floats, float_bytes, cluster, when);
    case Pattern::two_level:
      return two_level(floats, float_bytes, cluster, when);
  }
}

double all_reduce_seconds(Pattern pattern, double floats, double float_bytes, const Cluster& cluster) {
  std::vector<double> when(static_cast<std::size_t>(cluster.ranks), 0.0);
  all_reduce(pattern, floats, float_bytes, cluster, when);
  return std::ranges::max(when);
}

}  // namespace cifar_mpi::forecast
