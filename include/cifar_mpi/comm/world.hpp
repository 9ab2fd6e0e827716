#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cifar_mpi/base/error.hpp"

namespace cifar_mpi::comm {

/// The life time of MPI and where this rank stands in it. One per process, first in, last out.
///
/// Throws Error{launch} when the launcher announces more ranks than the MPI library sees (a binary started as N separate
/// worlds of one, because launcher and MPI library do not match).
class World {
 public:
  World(int& argc, char**& argv);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const;
  int size() const;
  int node_rank() const;  ///< among the ranks of this host
  int node_size() const;
  const std::string& host() const;
  /// Version of the MPI library in words.
  static std::string library();

  /// Cores this rank may run on divided by the ranks of this node that may run on the same ones, at least 1.
  int fair_threads() const;
  /// Cores of this node that no rank's mask contains; 0 when all are used.
  int unused_cores() const;
  /// More ranks on this node than cores they may run on.
  bool oversubscribed() const;

  /// Ends a set-up phase together: every rank calls it with what went wrong on it, or nothing. When any rank failed, throws
  /// on all ranks the error of the lowest failing one. Costs one small all-reduce when all is well.
  void agree(const std::optional<Error>& mine) const;

  /// Runs `phase` and agrees on its outcome, so that one rank's error becomes every rank's error.
  void together(const std::function<void()>& phase) const;

  void barrier() const;
  /// Element-wise sums over all ranks, in place, the same bits on every rank.
  void sum(std::span<double> values) const;
  /// Copies `bytes` from rank 0 to all.
  void broadcast(std::span<std::byte> bytes) const;
  /// Replaces `text` by rank 0's.
  void broadcast(std::string& text) const;
  /// Ends all ranks at once, for errors inside the loop that only this rank knows of. Does not return.
  [[noreturn]] void abort(int exit_code) const;

 private:
  friend struct WorldAccess;  // src/comm: gives the collectives the communicator
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cifar_mpi::comm
