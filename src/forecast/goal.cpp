#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "comm/collectives.hpp"
#include "forecast/export.hpp"

namespace cifar_mpi::forecast {
namespace {

using Kind = RecordedStep::Kind;
using Ops = std::vector<int>;

/// The operations of all nodes, each with a number in its node from 1 on; 0 is no operation.
class Schedule {
 public:
  explicit Schedule(const Cluster& cluster)
      : cluster_(cluster), nodes_(static_cast<std::size_t>(cluster.nodes())) {}

  int node_of(int rank) const { return rank / cluster_.per_node; }

  /// Work that occupies the rank's processor.
  int work(int rank, double seconds, const Ops& after) {
    return calc(rank, 1 + rank % cluster_.per_node, seconds, after);
  }
  /// Copies and sums of the rank's all-reduces.
  int moves(int rank, double seconds, const Ops& after) {
    return calc(rank, 1 + cluster_.per_node + rank % cluster_.per_node, seconds, after);
  }
  /// An operation of the rank's node after all of these.
  int join(int rank, const Ops& after) {
    return after.size() == 1 ? after.front() : calc(rank, 0, 0.0, after);
  }
  /// Begins after `sender` and `receiver`, which are operations of the two nodes. Returns the operation of the node of `to` with
  /// which the message has arrived.
  int message(int from, int to, double bytes, int sender, int receiver) {
    if (node_of(from) == node_of(to)) return moves(from, cluster_.links.copy_s(bytes), {sender, receiver});
    const long long length = std::max(1LL, std::llround(bytes));
    ++tag_;
    add(from, {sender}, fmt::format("send {}b to {} tag {} cpu 0", length, node_of(to), tag_));
    return add(to, {receiver}, fmt::format("recv {}b from {} tag {} cpu 0", length, node_of(from), tag_));
  }

  /// Throws Error{usage} if so many more operations are too many.
  void require_room(std::size_t operations) const {
    if (operations_ + operations <= kMostOperations) return;
    throw Error(ErrorKind::usage, "--goal: a step of ", cluster_.ranks, " ranks has more than ",
                kMostOperations, " operations; forecast fewer ranks");
  }

  /// Takes the text of all nodes, after `text`.
  std::string take(std::string text) {
    std::size_t size = text.size();
    for (const Node& node : nodes_) size += node.text.size() + kBraces;
    text.reserve(size);
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      text += fmt::format("\nrank {} {{\n", n);
      text += std::exchange(nodes_[n].text, {});
      text += "}\n";
    }
    return text;
  }

 private:
  static constexpr std::size_t kBraces = 32;  ///< bytes at most around a node's text
  struct Node {
    std::string text;
    int last = 0;
  };

  int calc(int rank, int cpu, double seconds, const Ops& after) {
    return add(rank, after, fmt::format("calc {} cpu {}", std::llround(1e9 * seconds), cpu));
  }

  int add(int rank, const Ops& after, std::string_view what) {
    require_room(1);
    ++operations_;
    Node& node = nodes_[static_cast<std::size_t>(node_of(rank))];
    ++node.last;
    fmt::format_to(std::back_inserter(node.text), "l{}: {}\n", node.last, what);
    for (const int op : after)
      if (op > 0) fmt::format_to(std::back_inserter(node.text), "l{} requires l{}\n", node.last, op);
    return node.last;
  }

  const Cluster& cluster_;
  std::vector<Node> nodes_;
  std::size_t operations_ = 0;
  int tag_ = 0;  ///< of the last message; no two messages have the same
};

/// The messages, sums and copies of an all-reduce. Its functions take and return an operation for each rank (or place): the one
/// after which the rank is ready for the all-reduce, then the one after which the all-reduce has ended there.
class Exchange {
 public:
  Exchange(const ExportedStep& step, Schedule& schedule)
      : cluster_(step.cluster), schedule_(schedule), float_bytes_(step.float_bytes) {}

  void run(Pattern pattern, double floats, Ops& when) {
    switch (pattern) {
      case Pattern::ring: {
        Ops ranks(when.size());
        for (std::size_t r = 0; r < ranks.size(); ++r) ranks[r] = static_cast<int>(r);
        return ring(ranks, floats, 1, cluster_.nodes() > 1, when);
      }
      case Pattern::doubling:
        return doubling(floats, when);
      case Pattern::two_level:
        return two_level(floats, when);
    }
  }

 private:
  /// A ring of these ranks; a message is that of `owners` such rings.
  void ring(const Ops& ranks, double floats, int owners, bool network, Ops& when) {
    const std::size_t places = ranks.size();
    if (places < 2) return;
    const auto [chunks, chunk] = ring_chunks(floats, static_cast<int>(places), network);
    schedule_.require_room(2 * (places - 1) * places * chunks);  // at least
    std::vector<Ops> have(chunks, when);
    Ops arrives(places);
    for (std::size_t round = 0; round < 2 * (places - 1); ++round) {
      for (Ops& own : have) {
        for (std::size_t i = 0; i < places; ++i) {
          const std::size_t to = (i + 1) % places;
          const double bytes = owners * chunk * float_bytes_;
          arrives[to] = schedule_.message(ranks[i], ranks[to], bytes, own[i], when[to]);
          if (round < places - 1)
            arrives[to] = schedule_.moves(ranks[to], cluster_.links.add_s(chunk), {arrives[to]});
        }
        own = arrives;
      }
    }
    for (std::size_t i = 0; i < places; ++i) {
      Ops ends;
      for (const Ops& own : have) ends.push_back(own[i]);
      when[i] = schedule_.join(ranks[i], ends);
    }
  }

  void doubling(double floats, Ops& when) {
    for (int round = 0; round < comm::doubling_rounds(cluster_.ranks); ++round) {
      std::vector<std::pair<int, int>> messages;  // from rank to rank
      std::vector<int> adding;
      for (int rank = 0; rank < cluster_.ranks; ++rank) {
        const auto stage = comm::doubling_stage(rank, cluster_.ranks, round);
        if (!stage) continue;
        if (stage->sends) messages.emplace_back(rank, stage->peer);
        if (stage->arrival == comm::DoublingStage::Arrival::added) adding.push_back(rank);
      }
      send_at_once(messages, floats * float_bytes_, when);
      for (const int rank : adding) {
        int& at = when[static_cast<std::size_t>(rank)];
        at = schedule_.moves(rank, cluster_.links.add_s(floats), {at});
      }
    }
  }

  /// All these messages at once; those from one node to another are one message.
  void send_at_once(const std::vector<std::pair<int, int>>& messages, double bytes, Ops& when) {
    const Ops before = when;
    const auto at = [&](int rank) { return before[static_cast<std::size_t>(rank)]; };
    std::map<std::pair<int, int>, std::vector<std::pair<int, int>>> between;  // nodes
    for (const auto& [from, to] : messages) {
      const std::pair nodes(schedule_.node_of(from), schedule_.node_of(to));
      if (nodes.first != nodes.second)
        between[nodes].emplace_back(from, to);
      else
        when[static_cast<std::size_t>(to)] = schedule_.message(from, to, bytes, at(from), at(to));
    }
    for (const auto& [_, shared] : between) {
      Ops senders, receivers;
      for (const auto& [from, to] : shared) {
        senders.push_back(at(from));
        receivers.push_back(at(to));
      }
      const auto [from, to] = shared.front();
      const int arrived = schedule_.message(from, to, static_cast<double>(shared.size()) * bytes,
                                            schedule_.join(from, senders), schedule_.join(to, receivers));
      for (const auto& message : shared) when[static_cast<std::size_t>(message.second)] = arrived;
    }
  }

  /// Each rank of a node adds one slice of the node's arrays, sums it around a ring of nodes, and writes it to all arrays of
  /// the node.
  void two_level(double floats, Ops& when) {
    const int per_node = cluster_.per_node;
    const double slice_s = cluster_.slice_s(floats);
    const auto ranks_on = [&](int first) {
      const int last = std::min(first + per_node, cluster_.ranks);
      return std::span(when).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first));
    };
    Ops firsts, nodes;
    for (int first = 0; first < cluster_.ranks; first += per_node) {
      const std::span<int> own = ranks_on(first);
      firsts.push_back(first);
      nodes.push_back(schedule_.join(first, Ops(own.begin(), own.end())));
      if (per_node > 1) nodes.back() = schedule_.moves(first, slice_s, {nodes.back()});
    }
    ring(firsts, floats / cluster_.owners(), cluster_.owners(), true, nodes);
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      if (per_node > 1) nodes[n] = schedule_.moves(firsts[n], slice_s, {nodes[n]});
      std::ranges::fill(ranks_on(firsts[n]), nodes[n]);
    }
  }

  const Cluster& cluster_;
  Schedule& schedule_;
  double float_bytes_;
};

/// Follows all ranks through the step as step_seconds does.
class Writer {
 public:
  explicit Writer(const ExportedStep& step)
      : step_(step),
        schedule_(step.cluster),
        now_(static_cast<std::size_t>(step.cluster.ranks)),
        at_(now_.size()),
        ends_(step.patterns.size(), Ops(now_.size())) {}

  std::string write(std::string head) {
    Exchange exchange(step_, schedule_);
    for (std::size_t c = 0; c < ends_.size(); ++c) {
      for (std::size_t r = 0; r < now_.size(); ++r) {
        advance(r, c);
        Ops begin = now_[r];
        if (step_.recording.collectives[c].before >= 0) begin.push_back(ends_[c - 1][r]);
        ends_[c][r] = schedule_.join(static_cast<int>(r), begin);
      }
      exchange.run(step_.patterns[c], step_.floats[c], ends_[c]);
    }
    for (std::size_t r = 0; r < now_.size(); ++r) advance(r, ends_.size());
    return schedule_.take(std::move(head));
  }

 private:
  /// Writes the work of a rank until it is ready for collective `until`, or to the end of its step.
  void advance(std::size_t rank, std::size_t until) {
    const auto& actions = drawn_step(step_.recording, rank, 0).actions;
    while (at_[rank] < actions.size()) {
      const RecordedStep::Action& action = actions[at_[rank]++];
      const double work_s = seconds_of(action, step_.amount);
      if (work_s > 0.0) now_[rank] = {schedule_.work(static_cast<int>(rank), work_s, now_[rank])};
      if (action.kind == Kind::wait && action.collective < until)
        now_[rank].push_back(ends_[action.collective][rank]);
      if (action.kind == Kind::ready && action.collective == until) return;
    }
  }

  const ExportedStep& step_;
  Schedule schedule_;
  std::vector<Ops> now_;         ///< by rank: its next operation requires these
  std::vector<std::size_t> at_;  ///< by rank: its next action
  std::vector<Ops> ends_;        ///< by collective and rank
};

}  // namespace

std::string goal_schedule(const ExportedStep& step) {
  const Cluster& cluster = step.cluster;
  constexpr int kMostPerNode = 127;
  if (cluster.per_node > kMostPerNode)
    throw Error(ErrorKind::usage, "--goal: a schedule has at most ", kMostPerNode,
                " ranks per node, and the run has ", cluster.per_node,
                "; forecast a run with fewer ranks per node");
  const long long latency_ns = std::llround(1e9 * cluster.links.seconds(0.0, 1));
  if (latency_ns > std::numeric_limits<int>::max())
    throw Error(ErrorKind::usage,
                "--goal: LogGOPSim takes latencies up to 2.147 s; give the links a shorter one");
  return Writer(step).write(
      fmt::format("{}{} ranks, {} per node. A rank in this file is a node.\n"
                  "// cpu 0: messages; cpu 1 to {}: work of the node's ranks; above: their sums and copies.\n"
                  "// The links of the forecast: LogGOPSim -L {} -o 0 -g 0 -G {:.6g} -O 0 -S 2147483647\n"
                  "num_ranks {}\n",
                  kGoalBegins, cluster.ranks, cluster.per_node, cluster.per_node, latency_ns,
                  1e9 / cluster.links.bytes_per_s, cluster.nodes()));
}

}  // namespace cifar_mpi::forecast
