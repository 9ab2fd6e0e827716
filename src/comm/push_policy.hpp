#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "cifar_mpi/comm/server_update.hpp"

/// The first server's decisions, without messages: which pushes form an update, and when each worker is answered.
namespace cifar_mpi::comm {

/// One action of all servers, in the first server's order. The pushes of `taken` are removed; with `updates`
/// their sum in rank order makes the next version, else they are dropped. Then the workers of `answered`
/// receive the current version. Workers are in rank order.
struct PushOrder {
  std::vector<int> taken;
  bool updates = false;
  std::vector<int> answered;
  /// Of an update: all workers must receive its version before the next one is made.
  bool meets = false;
  std::uint64_t staleness = 0;  ///< of an asynchronous update: versions made since its worker was answered
};

/// A worker has one push in flight: it computes with the version of its last answer, pushes, and waits for the answer.
///
/// pushes = R the first R pushes computed with the current version form an update; a push of an older version
/// is dropped and answered at once with the current one. So a worker that was late once does not stay late,
/// and a gradient is never older than the weights it changes. asynchronous every push makes an update, as it
/// arrives, or in a random but fixed order; its worker receives the version it made. With a bound s on the
/// drift, a worker with more than s pushes more than the slowest waits for its answer until that one has
/// pushed again. A meeting, at which all are answered, lets it begin one more batch.
///
/// Before a meeting of asynchronous workers, answers are limited so that the pushes in flight make just the versions up
/// to it. If meetings are fewer versions apart than there are workers, the surplus pushes are dropped.
///
/// The course after a meeting depends only on `pushed` and on later pushes, so a run resumed there with the
/// same `pushed` and order of pushes repeats it.
class PushPolicy {
 public:
  /// `version`: that of all workers. `next_meeting(v)`: the first version after v that all workers must
  /// receive before the next one. `pushed`: the number of pushes by worker; empty: all equal.
  PushPolicy(int workers, const Aggregation& aggregation, std::uint64_t version,
             std::function<std::uint64_t(std::uint64_t)> next_meeting,
             const std::vector<std::uint64_t>& pushed = {});

  void arrived(int worker);
  /// Makes all workers meet as soon as possible, because one received a request to stop.
  void ask_to_meet() { asked_ = true; }
  /// The next action, or null until another push arrives. The action counts as done; the pointer is valid
  /// until the next call. Allocates nothing.
  const PushOrder* next();
  /// Drops pushes until all workers have received the current version, because it is that of a meeting or its
  /// update was not applied.
  void gather() { gathering_ = true; }
  bool gathered() const;

 private:
  enum class Place : std::uint8_t { computing, here, held };
  struct Worker {
    Place place = Place::computing;
    std::uint64_t has = 0;       ///< the version of its last answer
    std::uint64_t pushed = 0;    ///< pushes of it that were taken
    std::uint64_t forgiven = 0;  ///< of these, the lead that the bound on the drift ignores
    std::uint64_t counted() const { return pushed - forgiven; }
  };

  void bound_drift();
  std::uint64_t least_counted() const;
  bool drop(int worker);
  bool gather_one();
  bool take_first();
  bool one();
  void update_by(int worker);
  void answer(int worker);
  void note_version();
  void release();
  std::optional<int> whose_turn() const;
  std::uint64_t under_way() const;
  Worker& at(int worker) { return workers_[static_cast<std::size_t>(worker)]; }
  const Worker& at(int worker) const { return workers_[static_cast<std::size_t>(worker)]; }

  std::vector<Worker> workers_;
  Aggregation aggregation_;
  std::uint64_t version_;
  std::function<std::uint64_t(std::uint64_t)> next_meeting_;
  std::uint64_t meeting_;
  std::vector<int> queue_;  ///< workers whose pushes are here, in order of arrival
  PushOrder order_;
  bool asked_ = false;
  bool gathering_ = false;
};

}  // namespace cifar_mpi::comm
