#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "comm/collectives.hpp"
#include "forecast/all_reduce.hpp"

namespace cifar_mpi::forecast {
namespace {

using Stage = comm::DoublingStage;

/// One direction of a node's link. Messages on it share it equally; all messages are equally long.
class Link {
 public:
  void enter(double now, std::uint32_t message, double occupies_s) {
    advance(now);
    messages_.emplace_back(served_s_ + occupies_s, message);
  }
  std::uint32_t leave(double now) {
    advance(now);
    const std::uint32_t message = messages_.front().second;
    served_s_ = messages_.front().first;
    messages_.erase(messages_.begin());
    return message;
  }
  bool empty() const { return messages_.empty(); }
  /// When the first message leaves if no other enters before.
  double next_s() const {
    return at_s_ + (messages_.front().first - served_s_) * static_cast<double>(messages_.size());
  }

 private:
  void advance(double now) {
    if (!messages_.empty()) served_s_ += (now - at_s_) / static_cast<double>(messages_.size());
    at_s_ = now;
  }

  std::vector<std::pair<double, std::uint32_t>> messages_;  ///< each leaves at this value of `served_s_`
  double at_s_ = 0.0;                                       ///< when served_s_ was computed
  double served_s_ = 0.0;  ///< seconds for which each message has had the whole link
};

struct Event {
  double at_s = 0.0;
  std::uint32_t index = 0;   ///< of a rank, message or link
  std::uint32_t change = 0;  ///< of the link
  bool operator>(const Event& other) const { return at_s > other.at_s; }
};

/// Runs the stages of all ranks in the order of time. A message of rank r in round i has the number r * rounds + i.
class Exchanges {
 public:
  Exchanges(double bytes, double add_s, const Cluster& cluster, std::vector<double>& when)
      : ranks_(cluster.ranks),
        per_node_(static_cast<std::uint32_t>(cluster.per_node)),
        rounds_(static_cast<std::uint32_t>(comm::doubling_rounds(cluster.ranks))),
        sends_at_once_(bytes < kSentAtOnce),
        occupies_s_(cluster.links.occupied_s(bytes, 1)),
        latency_s_(std::max(0.0, cluster.links.seconds(bytes, 1) - occupies_s_)),
        copy_s_(cluster.links.copy_s(bytes)),
        add_s_(add_s),
        when_(when),
        states_(when.size()),
        links_(2 * static_cast<std::size_t>(cluster.nodes())),
        versions_(links_.size()) {}

  void run() {
    for (std::uint32_t rank = 0; rank < states_.size(); ++rank) next_round(rank, 0, when_[rank], ready_);
    std::ranges::sort(ready_, {}, &Event::at_s);
    while (take_next()) continue;
  }

 private:
  struct Rank {
    std::uint32_t round = 0;
    bool begun = false;                    ///< the round
    bool sends = false, receives = false;  ///< what the round waits for
    std::uint32_t early = 0;   ///< a bit for each round whose message came before the rank began it
    std::uint32_t passed = 0;  ///< a bit for each round whose own message has passed one of its two links
  };

  std::optional<Stage> stage(std::uint32_t rank, std::uint32_t round) const {
    return comm::doubling_stage(static_cast<int>(rank), ranks_, static_cast<int>(round));
  }
  std::uint32_t peer(std::uint32_t message) const {
    return static_cast<std::uint32_t>(stage(message / rounds_, message % rounds_)->peer);
  }

  /// Runs the earliest event; false if there is none.
  bool take_next() {
    std::deque<Event>* first = nullptr;
    for (std::deque<Event>* const queue : {&ready_, &begins_, &added_, &enters_, &arrives_})
      if (!queue->empty() && (first == nullptr || first->front() > queue->front())) first = queue;
    if (!leaves_.empty() && (first == nullptr || first->front() > leaves_.top())) {
      const Event event = leaves_.top();
      leaves_.pop();
      if (versions_[event.index] == event.change) leave(event.index, event.at_s);
      return true;
    }
    if (first == nullptr) return false;
    const Event event = first->front();
    first->pop_front();
    if (first == &ready_ || first == &begins_ || first == &added_) begin(event.index, event.at_s);
    if (first == &enters_) enter(event.index, event.at_s);
    if (first == &arrives_) arrive(event.index, event.at_s);
    return true;
  }

  void next_round(std::uint32_t rank, std::uint32_t round, double at_s, std::deque<Event>& queue) {
    while (round < rounds_ && !stage(rank, round)) ++round;
    states_[rank].round = round;
    states_[rank].begun = false;
    when_[rank] = at_s;
    if (round < rounds_) queue.push_back({at_s, rank});
  }

  void begin(std::uint32_t rank, double now) {
    Rank& own = states_[rank];
    const Stage part = *stage(rank, own.round);
    const Rank& other = states_[static_cast<std::size_t>(part.peer)];
    const bool other_begun = other.begun && other.round == own.round;
    own.begun = true;
    own.sends = part.sends && !sends_at_once_;
    own.receives = part.arrival != Stage::Arrival::none && (own.early >> own.round & 1) == 0;
    if (part.sends && (sends_at_once_ || other_begun)) send(rank, own.round, now);
    if (own.receives && !sends_at_once_ && other_begun)
      send(static_cast<std::uint32_t>(part.peer), own.round, now);
    end_round(rank, now);
  }

  void send(std::uint32_t rank, std::uint32_t round, double now) {
    const std::uint32_t message = rank * rounds_ + round;
    const bool crosses = rank / per_node_ != peer(message) / per_node_;
    if (crosses)
      enters_.push_back({now + latency_s_, message});
    else
      arrives_.push_back({now + copy_s_, message});
  }

  void enter(std::uint32_t message, double now) {
    for (const std::uint32_t link :
         {2 * (message / rounds_ / per_node_), 2 * (peer(message) / per_node_) + 1}) {
      links_[link].enter(now, message, occupies_s_);
      plan(link);
    }
  }

  void plan(std::uint32_t link) {
    ++versions_[link];
    if (!links_[link].empty()) leaves_.push({links_[link].next_s(), link, versions_[link]});
  }

  /// The first message of the link leaves it, and has arrived if it has left its other link, too.
  void leave(std::uint32_t link, double now) {
    const std::uint32_t message = links_[link].leave(now);
    plan(link);
    std::uint32_t& passed = states_[message / rounds_].passed;
    passed ^= 1U << message % rounds_;
    if ((passed >> message % rounds_ & 1) == 0) arrive(message, now);
  }

  void arrive(std::uint32_t message, double now) {
    const std::uint32_t round = message % rounds_;
    Rank& from = states_[message / rounds_];
    const std::uint32_t to = peer(message);
    states_[to].early |= 1U << round;
    if (states_[to].begun && states_[to].round == round) {
      states_[to].receives = false;
      end_round(to, now);
    }
    if (sends_at_once_) return;
    from.sends = false;
    end_round(message / rounds_, now);
  }

  void end_round(std::uint32_t rank, double now) {
    const Rank& own = states_[rank];
    if (own.sends || own.receives) return;
    const bool adds = stage(rank, own.round)->arrival == Stage::Arrival::added;
    next_round(rank, own.round + 1, adds ? now + add_s_ : now, adds ? added_ : begins_);
  }

  int ranks_;
  std::uint32_t per_node_, rounds_;
  bool sends_at_once_;
  double occupies_s_, latency_s_, copy_s_, add_s_;
  std::vector<double>& when_;
  std::vector<Rank> states_;
  std::vector<Link> links_;              ///< of node n: 2n carries what it sends, 2n + 1 what it receives
  std::vector<std::uint32_t> versions_;  ///< of each link: an event planned before the last change is void
  std::deque<Event> ready_, begins_, added_, enters_,
      arrives_;  ///< ascending, because each kind of event follows its cause after a constant time
  std::priority_queue<Event, std::vector<Event>, std::greater<>> leaves_;
};

}  // namespace

void doubling(double floats, double float_bytes, const Cluster& cluster, std::vector<double>& when) {
  Exchanges(floats * float_bytes, cluster.links.add_s(floats), cluster, when).run();
}

}  // namespace cifar_mpi::forecast
