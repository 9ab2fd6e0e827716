#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "cifar_mpi/comm/server_update.hpp"

/// Which pushes make an update, and who is answered when: the first server's judgement, without messages.
namespace cifar_mpi::comm {

/// One thing that all servers do, in the order in which the first one says so. The pushes of `taken` leave; with
/// `updates` their sum in rank order makes the next version, else they are dropped. Then those of `answered` get the
/// version that there is. Workers stand in rank order.
struct PushOrder {
  std::vector<int> taken;
  bool updates = false;
  std::vector<int> answered;
  /// Of an update: all workers are to have the version that it makes before there is another.
  bool meets = false;
  std::uint64_t staleness = 0;  ///< of an asynchronous update: versions made since its worker was answered
};

/// A worker has one push under way: it computes on the version it was answered with, pushes, and waits for the answer.
///
/// pushes = R     an update is made of the first R pushes that were computed on the current version; one of an older
///                version is dropped and answered at once with the current one. So nobody who is late, or lost time
///                once, stays behind, and a gradient is never of an older version than the weights it changes.
/// asynchronous   every push makes an update, as it comes, or in a drawn order; its worker is answered with the version
///                that it made. With a bound s on the drift a worker that has pushed more than s times more than the
///                slowest waits for its answer until that one has pushed again. A meeting, at which all are answered,
///                lets it begin one batch more.
///
/// Before a meeting of asynchronous workers there are only so many answers that the pushes under way make just the versions
/// up to it. Where meetings are fewer versions apart than there are workers, the pushes that are left over are dropped.
///
/// What follows a meeting depends on `pushed` and on what comes then, so a run that resumes there with the same `pushed`
/// and order of pushes does the same.
class PushPolicy {
 public:
  /// `version`: what all workers have. `next_meeting(v)`: the first version behind v that all workers are to have
  /// before there is another. `pushed`: by worker, how many pushes of it there were; none: equally many of each.
  PushPolicy(int workers, const Aggregation& aggregation, std::uint64_t version,
             std::function<std::uint64_t(std::uint64_t)> next_meeting,
             const std::vector<std::uint64_t>& pushed = {});

  void arrived(int worker);
  /// All workers are to meet as soon as can be: one was asked to stop.
  void ask_to_meet() { asked_ = true; }
  /// What is to be done now, or null until another push is here. What it says is taken for done; it holds until the next
  /// call. Takes no memory.
  const PushOrder* next();
  /// From now on pushes are dropped until all workers have been answered with the version that there is: it is one to
  /// meet at, or its update did not apply.
  void gather() { gathering_ = true; }
  bool gathered() const;

 private:
  enum class Place : std::uint8_t { computing, here, held };
  struct Worker {
    Place place = Place::computing;
    std::uint64_t has = 0;       ///< the version it was answered with
    std::uint64_t pushed = 0;    ///< pushes of it that were taken
    std::uint64_t forgiven = 0;  ///< of these, the lead that the bound on the drift ignores
    std::uint64_t counted() const { return pushed - forgiven; }
  };

  void bound_drift();
  std::uint64_t least_counted() const;
  bool drop(int worker);
  bool gather_one();
  bool first_ones();
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
  std::vector<int> queue_;  ///< whose pushes are here, in the order in which they came
  PushOrder order_;
  bool asked_ = false;
  bool gathering_ = false;
};

}  // namespace cifar_mpi::comm
