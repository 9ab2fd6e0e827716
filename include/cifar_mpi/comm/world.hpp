#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/run_fingerprint.hpp"

namespace cifar_mpi::comm {

/// An error that every rank throws at the same place: rank 0 prints it, and all leave in order.
class AgreedError : public Error {
 public:
  using Error::Error;
};

/// The life time of MPI and where this rank stands in it. One per process, first in, last out.
///
/// Started without a launcher the world has one rank. With more local ranks than cores MPI is told to give
/// way while it waits (OMPI_MCA_mpi_yield_when_idle, unless the user has set it). All calls but `abort`
/// belong on the thread that made the World; a call that fails throws Error{comm}.
class World {
 public:
  /// Throws Error{launch} when the launcher announces more ranks than the MPI library sees (a binary started
  /// as N separate worlds of one, because launcher and MPI library do not match).
  ///
  /// A rank that is stopped, or never comes, while MPI starts keeps all others in it: those whose start is not
  /// declared over by `started` within `limit_s` seconds end with the code of Error{comm}; 0: never.
  World(int& argc, char**& argv, double limit_s = 0.0);
  /// Finalizes MPI, which waits for all ranks, but a minute at most: then the process ends hard with the code
  /// of Error{comm}. So an exception may pass through here only when it is every rank's, as those of `agree`
  /// and `together` are. An error of the loop that only this rank knows must be caught inside the World's
  /// life, printed, and end in `abort`; if it does come through here, all ranks are ended with exit code 1
  /// instead of a hang.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// The first `ranks` ranks as a world of their own, which goes before `world`; null on the others. What fails in it is
  /// thrown on its ranks alone. Collective over `world`.
  static std::unique_ptr<World> first(const World& world, int ranks);

  /// From here on others see to it that nobody waits for ever.
  void started() const;

  int rank() const;
  int size() const;
  int node_rank() const;  ///< among the ranks of this host
  int node_size() const;
  const std::string& host() const;
  /// Version of the MPI library in words.
  static std::string library();

  /// Cores this rank may run on (its affinity mask) divided by the ranks of this node, itself included, that
  /// may run on any of them, and no more than this rank's part of a CPU quota of its cgroup; at least 1.
  int fair_threads() const;
  /// What that was found from: "4 cores in the affinity mask of a rank, shared by 2 ranks".
  std::string cores_text() const;
  /// Where the ranks may run, on rank 0, one line for ranks of a host with the same cores: "ranks 0-3 on node1: cores 0-7, NUMA
  /// domain 0"; nothing on the others. Collective.
  std::vector<std::string> place_lines() const;
  /// How many of this rank's cores processes that are no ranks have used since the World was made, on average, where too few are
  /// left for `threads` threads of each rank; else 0. Collective over the ranks of this node.
  double cores_lost(int threads) const;
  /// Cores of this node that the job or container may use and no rank's mask contains; 0 when all are used.
  int unused_cores() const;
  /// More ranks on this node than cores they may run on; also when only some of them crowd on too few. Equal
  /// on a node.
  bool oversubscribed() const;

  /// Ends a set-up phase together: every rank calls it with what went wrong on it, or nothing. When any rank
  /// failed, throws an AgreedError on all ranks, that of the lowest failing one; if that is not rank 0, " (on
  /// rank r, host h)" follows the text. Costs one small all-reduce when all is well.
  void agree(const std::optional<Error>& mine) const;

  /// Runs `phase` and agrees on its outcome, so that one rank's error becomes every rank's error. Lack of
  /// memory becomes Error{device}, any other std::exception Error{internal}. `phase` must not communicate
  /// with ranks that may fail in it.
  void together(const std::function<void()>& phase) const;

  /// Compares `mine`, item by item, with rank 0's. Where one differs, or only one side has it, throws an
  /// AgreedError of this kind on all ranks that names the lowest differing rank's first such item: "--lr is
  /// 0.2 on rank 2 (node3), but 0.1 on rank 0 (node1); " and `advice`. Costs a broadcast and what `agree`
  /// costs.
  void require_equal(ErrorKind kind, const RunFingerprint& mine, std::string_view advice) const;

  void barrier() const;
  /// Element-wise sums over all ranks, in place, the same bits on every rank.
  void sum(std::span<double> values) const;
  /// One value of every rank, by rank, on every rank.
  std::vector<double> gather(double mine) const;
  /// What every rank gives, by rank, of any length, on rank 0; nothing on the others, which do not wait for it.
  std::vector<std::vector<std::byte>> collect(std::span<const std::byte> mine) const;
  /// The host of every rank, by rank; gathered once at start.
  const std::vector<std::string>& hosts() const;
  /// Copies `bytes` from rank 0 to all.
  void broadcast(std::span<std::byte> bytes) const;
  /// Replaces `text` by rank 0's.
  void broadcast(std::string& text) const;
  void broadcast(RunFingerprint& items) const;
  /// Flushes stdio and ends all ranks at once, for errors inside the loop that only this rank knows of.
  /// mpirun returns `exit_code`. Does not return, and takes five seconds at most. The one call that any
  /// thread may make: another than the World's leaves without MPI, and the launcher then ends the other
  /// ranks.
  [[noreturn]] void abort(int exit_code) const;

 private:
  /// `agree` on an error whose text says by itself on which rank it was found.
  void vote(const std::optional<Error>& mine) const;

  friend struct WorldAccess;  // src/comm: gives the collectives the communicator
  struct State;
  explicit World(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace cifar_mpi::comm
