#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cifar_mpi/base/buffer.hpp"
#include "cifar_mpi/comm/update.hpp"
#include "comm/push_policy.hpp"
#include "comm/push_pull.hpp"
#include "comm/request_list.hpp"

namespace cifar_mpi::comm {

/// The first server's counts of pushes, in one block that is sent with its answers.
class PushTally {
 public:
  explicit PushTally(int workers)
      : workers_(static_cast<std::size_t>(workers)), values_(2 * workers_ + PushCounts::kStalenesses + 1) {}

  void count_applied(int worker, std::uint64_t staleness) {
    ++values_[static_cast<std::size_t>(worker)];
    ++values_[2 * workers_ + std::min<std::uint64_t>(staleness, PushCounts::kStalenesses - 1)];
    values_.back() = std::max(values_.back(), staleness);
  }
  void count_dropped(int worker) { ++values_[workers_ + static_cast<std::size_t>(worker)]; }

  std::span<std::uint64_t> values() { return values_; }
  std::span<const std::uint64_t> values() const { return values_; }

  std::vector<std::uint64_t> applied() const { return part(0, workers_); }
  std::vector<std::uint64_t> dropped() const { return part(workers_, workers_); }
  std::vector<std::uint64_t> staleness() const { return part(2 * workers_, PushCounts::kStalenesses); }
  std::uint64_t most_stale() const { return values_.back(); }

 private:
  std::vector<std::uint64_t> part(std::size_t begin, std::size_t count) const {
    const auto first = values_.begin() + static_cast<std::ptrdiff_t>(begin);
    return {first, first + static_cast<std::ptrdiff_t>(count)};
  }

  std::size_t workers_;
  std::vector<std::uint64_t> values_;
};

/// A server's handling of the workers' pushes, in two tasks around its update: `start_round` and `poll_round`
/// end when `gradients` has the sum for the next version, `start_answers` and `poll_answers` when the workers
/// that are due have received that version.
///
/// The first server follows its PushPolicy and sends each order to the others, which execute the orders in sequence:
/// each takes the push in flight of the named workers. The order of an update carries the summed control block. Each
/// worker has its own memory for its push, and then for a copy of the version of its answer, so a worker that does not
/// receive its answer (stopped, or on a slow link) delays no other before the next meeting; if each update waits for
/// all workers, their common answer needs no copies. All memory for messages is allocated at construction.
class Serving {
 public:
  struct Arrays {
    std::span<float> gradients;  ///< of the span; on the first server preceded by the control block
    std::span<float> control;
    std::span<const float> params;  ///< of the span
    std::span<const double> decay_sums;
  };
  /// Data of the first server only; it must outlive this object.
  struct First {
    PushPolicy* policy = nullptr;
    StepFacts* facts = nullptr;
    PushTally* tally = nullptr;
  };
  /// `waits_for_all`: each update is made of the pushes of all workers.
  Serving(const ServerRanks& ranks, const Arrays& arrays, const First& first, bool waits_for_all);

  void start_round();
  bool poll_round();
  void start_answers();
  bool poll_answers();

  /// First server: one of the servers received a request to stop.
  void note_stop();

 private:
  enum class Phase : std::uint8_t { looking, ordered, taking, answering };

  std::span<float> place_of(int worker) const;
  std::span<std::byte> facts_for(int worker) const;
  void listen(int worker);
  void take_arrivals();
  void note_save();
  void note_sent();
  bool all_sent() const;
  bool look();
  void read_order();
  void write_order();
  bool all_here() const;
  void sum();
  void begin_answers();
  bool advance();
  bool gathered() const;
  bool applied() const;
  bool is_first() const { return first_.policy != nullptr; }
  std::byte* flags() const { return order_memory_.data() + kOrderHead; }

  static constexpr std::size_t kOrderHead = 2 * sizeof(std::uint64_t);

  ServerRanks ranks_;
  Arrays arrays_;
  First first_;
  bool waits_for_all_;
  Buffer places_;        ///< by worker: its push, or the parameters on their way to it
  Buffer sent_facts_;    ///< first server: by worker, on their way to it
  Buffer order_memory_;  ///< updates, meets, staleness, flags of taken and answered by worker, control block
  RequestList receives_;
  RequestList orders_;   ///< first server: its sends, else the receive
  RequestList answers_;  ///< by worker: parameters; first server: by worker parameters, then facts
  PushOrder order_;
  std::vector<bool> here_;
  std::vector<int> sending_;                ///< by worker: messages of its answer that have not left
  std::vector<std::uint64_t> answered_in_;  ///< by worker: `round_` as it was
  std::uint64_t round_ = 0;                 ///< versions made
  double stops_ = 0.0;                      ///< requests that no version has published
  double saves_ = 0.0;                      ///< the same for a checkpoint, with partial aggregation
  Phase phase_ = Phase::looking;
  bool in_round_ = false;  ///< before the update
  bool meets_ = false;     ///< all workers must receive this version
  bool met_ = true;        ///< they have, and no receives are posted
};

}  // namespace cifar_mpi::comm
