#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cifar_mpi/comm/update.hpp"
#include "cifar_mpi/comm/world.hpp"
#include "cifar_mpi/engine/backend.hpp"
#include "cifar_mpi/engine/layout.hpp"

/// The update of a parameter server: the last ranks hold the parameters, the others compute gradients for them.
namespace cifar_mpi::comm {

/// Cuts the trained parameters by bytes, at cache lines and not at parameters: whole ones would leave most of
/// some networks on one server. As many spans as servers; some are empty where there is too little.
std::vector<ParamSpan> cut_for_servers(const engine::ParamLayout& layout, int servers);

/// Of which pushes an update is made.
struct Aggregation {
  int pushes = 0;             ///< the first so many of the current version; 0: those of all workers
  bool asynchronous = false;  ///< each of one push, as it comes
  /// Asynchronous: a worker computes on only while it has pushed at most so many times more than any other.
  std::optional<std::uint64_t> most_drift = {};
  /// Likewise: seed of an order in which pushes are applied, whoever comes first.
  std::optional<std::uint64_t> arrival_order = {};
  /// Likewise: an update's rate is divided by its staleness, where that is above 1.
  bool scales_rate = false;

  /// How many pushes of so many workers make an update. Fewer than all: a worker may find that some were made without it.
  int of(int workers) const { return asynchronous ? 1 : pushes == 0 ? workers : pushes; }
};

struct ServerSettings {
  int servers = 1;      ///< fewer than ranks
  bool overlap = true;  ///< false: every push waits for the end of backward
  /// Bits of engine::Request of this rank; what a server is asked is added to what the workers are.
  const std::atomic<int>* requests = nullptr;
  Aggregation aggregation = {};
  /// How many batches each worker has computed, where a run goes on; empty: equally many.
  std::vector<std::uint64_t> pushed = {};
  /// Of a worker whose arrays lie in a device's memory: they are copied to and from the host. It outlives the update.
  engine::Backend* device = nullptr;
};

/// With N workers, ranks 0 to N − 1, and S servers behind them, of which server s (rank N + s) has span s.
///
/// A worker pushes its gradient of each span, as soon as that is ready, to the span's server, and with the
/// first span the control block. A server waits for the pushes of all workers and adds them in rank order,
/// ((w0 + w1) + w2) + …; server 0 adds the control blocks, and hands the sum to the other servers. Each
/// server runs the update task of its span. The servers tell each other the spans' decay terms and what they
/// are asked, and answer each worker with the new parameters, server 0 also with the summed control block.
/// So every rank ends the step with the same control block and decay terms, and workers with the same
/// parameters.
///
/// A worker's program: its compute tasks; on the comm lane the pushes and, behind everything, the wait for the
/// answers; then what finishes the step. Where it has a device a copy to the host stands before each push, and one
/// of the answer back behind the wait. A server's: the wait for the pushes, its update, the comparison, the
/// answer, and what finishes the step. Workers have the control block of all ranks behind the step, but the
/// gradients they computed; a server has its own span of the gradients.
///
/// Where pushes of fewer than all workers make an update (`aggregation`), the first server says whose; the others do in the
/// same sequence what it says, and a push that is not used is answered too (src/comm/push_policy.hpp). A worker may then
/// find several steps done behind one of its own, and knows the last one's control block. All ranks have each step that
/// StepParts::next_meeting names, and one behind a request to stop, at which they are told of that; traces are not
/// asked for.
///
///   bits    with the pushes of all workers those of a sum in rank order on every rank (`window` on one node), whatever S
///           and the timing; with `arrival_order` the same in each run, for the same meetings
///   memory  a server keeps a copy of its span for each worker; nothing is taken per step
///   throws  Error{comm} from the runner, naming the peer
///
/// Making one communicates: every rank calls it, outside World::together. `world` outlives it. `append` throws
/// std::logic_error for parts with `before_updates`: no rank has the whole sum.
std::unique_ptr<Update> make_server_update(const World& world, const engine::ParamLayout& layout,
                                           const ServerSettings& settings);

}  // namespace cifar_mpi::comm
