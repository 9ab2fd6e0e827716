#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/run_fingerprint.hpp"

namespace cifar_mpi::comm {

/// A value that travels between ranks of one build as its bytes.
template <class T>
concept Plain = std::is_trivially_copyable_v<T> && !std::is_pointer_v<T> &&
                !std::is_convertible_v<T&, std::span<std::byte>>;

/// An error that every rank throws at the same place: rank 0 prints it, and all exit cleanly.
class AgreedError : public Error {
 public:
  using Error::Error;
};

/// The lifetime of MPI and this rank's place in it. One per process, created first and destroyed last.
///
/// Started without a launcher the world has one rank. With more local ranks than cores, MPI yields the core
/// while it waits (OMPI_MCA_mpi_yield_when_idle, unless the user has set it). All calls but `abort` belong on
/// the thread that made the World; a call that fails throws Error{comm}.
class World {
 public:
  /// Throws Error{launch} when the launcher announces more ranks than the MPI library sees (a binary started
  /// as N separate worlds of one, because launcher and MPI library do not match).
  ///
  /// A rank that is stopped or missing while MPI starts blocks all others: a rank that does not reach
  /// `started` within `limit_s` seconds exits with the code of Error{comm}; 0: no limit.
  World(int& argc, char**& argv, double limit_s = 0.0);
  /// Finalizes MPI, which waits for all ranks, for at most a minute: then the process exits at once with the code of
  /// Error{comm}. So an exception may pass through here only if all ranks throw it, as `agree` and `together`
  /// do. An error that only this rank knows must be caught during the World's lifetime, printed, and end in
  /// `abort`; if it does pass through here, all ranks are ended with exit code 1 instead of a hang.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// The first `ranks` ranks as a world of their own, which must be destroyed before `world`; null on the
  /// others. Its failures are thrown on its ranks alone. Collective over `world`.
  static std::unique_ptr<World> first(const World& world, int ranks);

  /// Ends the time limit of the start; from here on the watchdog detects ranks that wait forever.
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
  /// A description of how that was computed: "4 cores in the affinity mask of a rank, shared by 2 ranks".
  std::string cores_text() const;
  /// Where the ranks may run, on rank 0, one line for ranks of a host with the same cores: "ranks 0-3 on node1: cores 0-7, NUMA
  /// domain 0"; empty on the others. Collective.
  std::vector<std::string> place_lines() const;
  /// The average number of this rank's cores that processes other than ranks have used since the World was made, if too
  /// few are left for `threads` threads of each rank; else 0. Collective over the ranks of this node.
  double cores_lost(int threads) const;
  /// Cores of this node that the job or container may use and no rank's mask contains; 0 when all are used.
  int unused_cores() const;
  /// Whether ranks of this node, or a group of them, outnumber the cores that they may run on. The same on
  /// all ranks of a node.
  bool oversubscribed() const;

  /// Ends a set-up phase together: every rank passes its error, or none. When any rank
  /// failed, throws an AgreedError on all ranks, that of the lowest failing one; if that is not rank 0, " (on
  /// rank r, host h)" follows the text. Costs one small all-reduce if no rank failed.
  void agree(const std::optional<Error>& mine) const;

  /// Runs `phase` and agrees on its outcome, so that one rank's error becomes every rank's error. Lack of
  /// memory becomes Error{device}, any other std::exception Error{internal}. `phase` must not communicate
  /// with ranks that may fail in it.
  void together(const std::function<void()>& phase) const;

  /// Compares `mine`, item by item, with rank 0's. If one differs, or only one side has it, throws an
  /// AgreedError of this kind on all ranks that names the lowest differing rank's first such item: "--lr is
  /// 0.2 on rank 2 (node3), but 0.1 on rank 0 (node1); " and `advice`. Costs a broadcast and an `agree`.
  void require_equal(ErrorKind kind, const RunFingerprint& mine, std::string_view advice) const;

  void barrier() const;
  /// Element-wise sums over all ranks, in place, the same bits on every rank.
  void sum(std::span<double> values) const;
  /// Gathers one value of every rank, by rank, on every rank.
  template <Plain T>
  std::vector<T> gather(const T& mine) const {
    std::vector<T> all(static_cast<std::size_t>(size()));
    gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
    return all;
  }
  std::vector<std::string> gather(const std::string& mine) const;
  /// Whether it holds on any rank.
  bool any(bool mine) const;
  /// Gathers the data of every rank, of any length, by rank, on rank 0; empty on the others, which do not wait for it.
  std::vector<std::vector<std::byte>> collect(std::span<const std::byte> mine) const;
  /// The host of every rank, by rank; gathered once at start.
  const std::vector<std::string>& hosts() const;
  /// Replaces the argument with rank 0's. All ranks pass equally many bytes; vectors, texts and items may differ in size.
  void broadcast(std::span<std::byte> bytes) const;
  template <Plain T>
  void broadcast(T& value) const {
    broadcast(std::as_writable_bytes(std::span(&value, 1)));
  }
  template <Plain T>
  void broadcast(std::vector<T>& values) const {
    std::uint64_t count = values.size();
    broadcast(count);
    values.resize(count);
    broadcast(std::as_writable_bytes(std::span(values)));
  }
  void broadcast(std::string& text) const;
  void broadcast(RunFingerprint& items) const;
  /// Flushes stdio and ends all ranks at once, for errors inside the loop that only this rank knows. mpirun
  /// returns `exit_code`. Does not return, and takes five seconds at most. The only call allowed from any
  /// thread: a thread other than the World's exits without MPI, and the launcher then ends the other ranks.
  [[noreturn]] void abort(int exit_code) const;

 private:
  /// `agree` on an error whose text already names its rank.
  void vote(const std::optional<Error>& mine) const;
  /// `all` has as many bytes for each rank as `mine` has.
  void gather(std::span<const std::byte> mine, std::span<std::byte> all) const;

  friend struct WorldAccess;  // src/comm: gives the collectives the communicator
  struct State;
  explicit World(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace cifar_mpi::comm
