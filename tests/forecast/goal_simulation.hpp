#pragma once

#include <algorithm>
#include <cstdio>
#include <map>
#include <queue>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

/// Reads schedules in GOAL and simulates them by the rules of the LogGOPSim in ATLAHS without overheads (o, g, O = 0) and with
/// eager messages, except that one that comes early does not wait for its receiver's own sends.
namespace cifar_mpi::goal {

struct Op {
  char kind = 'c';           ///< calc, send or receive
  unsigned long long n = 0;  ///< nanoseconds or bytes
  std::size_t peer = 0;
  int tag = 0;
  std::size_t cpu = 0;
  int waits = 0;                  ///< operations that it requires
  std::vector<std::size_t> next;  ///< operations that require it
  double ready_ns = 0.0;
};
using Schedule = std::vector<std::vector<Op>>;

class Reader {
 public:
  static Schedule read(const std::string& text) {
    Reader reader;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
      if (!reader.take(line)) throw std::runtime_error("not GOAL: " + line);
    if (reader.open_ || reader.schedule_.size() != reader.ranks_)
      throw std::runtime_error("ranks are missing");
    return reader.schedule_;
  }

 private:
  bool take(const std::string& line) {
    if (line.empty() || line.starts_with("//")) return true;
    if (!open_) {
      if (scan(line, "num_ranks %zu%n", 1, &ranks_)) return ranks_ > 0;
      std::size_t rank = 0;
      open_ = scan(line, "rank %zu {%n", 1, &rank) && rank == schedule_.size();
      if (open_) schedule_.emplace_back();
      return open_;
    }
    if (line == "}") return !(open_ = false);
    return operation(line) || dependency(line);
  }

  bool operation(const std::string& line) {
    std::size_t label = 0;
    Op op;
    if (scan(line, "l%zu: calc %llu cpu %zu%n", 3, &label, &op.n, &op.cpu)) {
      own().push_back(op);
      return label == own().size();
    }
    for (const auto& [kind, format] : {std::pair('s', "l%zu: send %llub to %zu tag %d cpu %zu%n"),
                                       std::pair('r', "l%zu: recv %llub from %zu tag %d cpu %zu%n")}) {
      if (!scan(line, format, 5, &label, &op.n, &op.peer, &op.tag, &op.cpu)) continue;
      op.kind = kind;
      own().push_back(op);
      return label == own().size() && op.n > 0 && op.peer < ranks_ && op.peer + 1 != schedule_.size();
    }
    return false;
  }

  /// Labels must be known, as in LogGOPSim; so a rank by itself has no cycle.
  bool dependency(const std::string& line) {
    std::size_t later = 0, earlier = 0;
    if (!scan(line, "l%zu requires l%zu%n", 2, &later, &earlier)) return false;
    if (later != own().size() || earlier == 0 || earlier >= later) return false;
    own()[earlier - 1].next.push_back(later - 1);
    ++own()[later - 1].waits;
    return true;
  }

  /// Whether the whole line has that form.
  template <class... Values>
  static bool scan(const std::string& line, const char* format, int values, Values*... into) {
    int end = 0;
    const int found = std::sscanf(line.c_str(), format, into..., &end);
    return found == values && static_cast<std::size_t>(end) == line.size();
  }

  std::vector<Op>& own() { return schedule_.back(); }

  Schedule schedule_;
  std::size_t ranks_ = 0;
  bool open_ = false;
};

/// Runs a schedule once. A node sends one message after the other.
class Simulation {
 public:
  Simulation(Schedule schedule, double latency_ns, double ns_per_byte)
      : ranks_(std::move(schedule)),
        latency_ns_(latency_ns),
        ns_per_byte_(ns_per_byte),
        cpu_ns_(ranks_.size(), std::vector<double>(256)),
        link_ns_(ranks_.size()) {}

  /// Nanoseconds. Throws if an operation never runs, or if a message has no receiver.
  double run() {
    for (std::size_t r = 0; r < ranks_.size(); ++r)
      for (std::size_t i = 0; i < ranks_[r].size(); ++i)
        if (ranks_[r][i].waits == 0) add(0.0, r, i, false);
    for (; !events_.empty(); process()) continue;
    std::size_t operations = 0;
    for (const std::vector<Op>& rank : ranks_) operations += rank.size();
    if (done_ != operations) throw std::runtime_error("operations wait for ever");
    if (!waiting_.empty()) throw std::runtime_error("a message has no receiver");
    return end_ns_;
  }

  std::size_t messages() const { return messages_; }

 private:
  using Event =
      std::tuple<double, std::size_t, std::size_t, std::size_t, bool>;  // ns, order, rank, op, arrives

  void add(double ns, std::size_t rank, std::size_t op, bool arrives) {
    events_.emplace(ns, ++order_, rank, op, arrives);
  }

  /// Whether the resource is free; if not, the event comes again when it is.
  bool take(double free_ns, const Event& event) {
    if (free_ns <= std::get<0>(event)) return true;
    Event later = event;
    std::get<0>(later) = free_ns;
    events_.push(later);
    return false;
  }

  void process() {
    const Event event = events_.top();
    events_.pop();
    const auto [ns, order, r, i, arrives] = event;
    const Op& op = ranks_[r][i];
    if (arrives) return meet(ns, op.peer, r, r, i);
    if (op.kind == 'r') return meet(ns, r, op.peer, r, i);
    double& cpu_ns = cpu_ns_[r][op.cpu];
    if (!take(cpu_ns, event)) return;
    if (op.kind == 'c') {
      cpu_ns = ns + static_cast<double>(op.n);
      return finish(r, i, cpu_ns);
    }
    if (!take(link_ns_[r], event)) return;
    const double sent_ns = ns_per_byte_ * static_cast<double>(op.n);
    link_ns_[r] = ns + sent_ns;
    ++messages_;
    add(ns + latency_ns_ + sent_ns, r, i, true);
    finish(r, i, ns);
  }

  /// A message to a rank and its receive; the later of the two ends the receive.
  void meet(double ns, std::size_t to, std::size_t from, std::size_t rank, std::size_t i) {
    const Op& op = ranks_[rank][i];
    const auto [other, first] = waiting_.try_emplace({to, from, op.tag}, std::pair(rank, i));
    if (first) return;
    const auto [other_rank, other_i] = other->second;
    const Op& found = ranks_[other_rank][other_i];
    if (found.kind == op.kind || found.n != op.n) throw std::runtime_error("a message is not its receive's");
    waiting_.erase(other);
    finish(to, op.kind == 'r' ? i : other_i, ns);
  }

  void finish(std::size_t rank, std::size_t i, double ns) {
    ++done_;
    end_ns_ = std::max(end_ns_, ns);
    for (const std::size_t next : ranks_[rank][i].next) {
      Op& op = ranks_[rank][next];
      op.ready_ns = std::max(op.ready_ns, ns);
      if (--op.waits == 0) add(op.ready_ns, rank, next, false);
    }
  }

  Schedule ranks_;
  double latency_ns_, ns_per_byte_;
  std::vector<std::vector<double>> cpu_ns_;
  std::vector<double> link_ns_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::map<std::tuple<std::size_t, std::size_t, int>, std::pair<std::size_t, std::size_t>> waiting_;
  std::size_t order_ = 0, done_ = 0, messages_ = 0;
  double end_ns_ = 0.0;
};

}  // namespace cifar_mpi::goal
