#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "cifar_mpi/comm/update.hpp"
#include "cifar_mpi/comm/world.hpp"
#include "cifar_mpi/engine/backend.hpp"
#include "cifar_mpi/engine/layout.hpp"

/// The update of a parameter server: the last ranks hold the parameters, the others compute gradients for them.
namespace cifar_mpi::comm {

/// Cuts the trained parameters by bytes, at cache lines: cuts between parameters would leave most of some
/// networks on one server. Returns as many spans as servers; some are empty if there are too few parameters.
std::vector<ParamSpan> cut_for_servers(const engine::ParamLayout& layout, int servers);

/// Which pushes form an update.
struct Aggregation {
  int pushes = 0;             ///< this many, the first of the current version; 0: those of all workers
  bool asynchronous = false;  ///< each push is an update, as it arrives
  /// Asynchronous: a worker continues only while it has made at most this many pushes more than any other.
  std::optional<std::uint64_t> most_drift = {};
  /// Asynchronous: seed of a fixed order in which pushes are applied, independent of their arrival.
  std::optional<std::uint64_t> arrival_order = {};
  /// Asynchronous: an update's rate is divided by its staleness, if that is above 1.
  bool scales_rate = false;

  /// The number of pushes in an update, given the number of workers. If it is fewer than all, updates may be
  /// made without a worker's push.
  int of(int workers) const { return asynchronous ? 1 : pushes == 0 ? workers : pushes; }
};

struct ServerSettings {
  int servers = 1;      ///< fewer than ranks
  bool overlap = true;  ///< false: every push waits for the end of backward
  /// Bits of engine::Request of this rank; requests to servers are added to those to workers.
  const std::atomic<int>* requests = nullptr;
  Aggregation aggregation = {};
  /// The first step after `done` at whose end all ranks must have the same parameters.
  std::function<std::uint64_t(std::uint64_t done)> next_meeting = {};
  /// On resume: the batches that each worker has computed; empty: equally many.
  std::vector<std::uint64_t> pushed = {};
  /// Of a worker whose arrays are in a device's memory: they are copied to and from the host. It must outlive
  /// the update.
  engine::Backend* device = nullptr;
};

/// With N workers, ranks 0 to N − 1, and then S servers; server s (rank N + s) has span s.
///
/// A worker pushes its gradient of each span, as soon as that is ready, to the span's server, and with the first span
/// the control block. A server waits for the pushes of all workers and adds them in rank order, ((w0 + w1) + w2) + …;
/// server 0 adds the control blocks, and sends the sum to the other servers. Each server runs the update task of its
/// span. The servers exchange the decay terms of their spans and their requests, and answer each worker with the new
/// parameters, server 0 also with the summed control block. So every rank ends the step with the same control block and
/// decay terms, and workers with the same parameters.
///
/// A worker's program: its compute tasks; on the comm lane the pushes and, last, the wait for the answers;
/// then the finish tasks. With a device, a copy to the host precedes each push, and a copy of the answer to
/// the device follows the wait. A server's program: the wait for the pushes, its update, the comparison, the
/// answer, and the finish tasks. After the step workers have the control block of all ranks, but their own
/// gradients; a server has its own span of the gradients.
///
/// If fewer than all workers form an update (`aggregation`), the first server chooses the pushes, and the
/// others follow its decisions in the same order; unused pushes are answered, too (src/comm/push_policy.hpp).
/// Several steps may then end during one batch of a worker, which receives the control block of the last one.
/// All ranks have each step that `next_meeting` names, and a step after a request to stop, at which
/// they learn of the request; traces cannot be requested.
///
///   bits    with the pushes of all workers those of a sum in rank order on every rank (`window` on one node),
///           for any S and timing; with `arrival_order` the same in each run, for the same meetings
///   memory  a server keeps a copy of its span for each worker; nothing is allocated per step
///   throws  Error{comm} from the runner, naming the peer
///
/// Making one communicates: every rank calls it, outside World::together. `world` outlives it. `append`
/// throws std::logic_error for parts with `before_updates`: no rank has the whole sum.
std::unique_ptr<Update> make_server_update(const World& world, const engine::ParamLayout& layout,
                                           const ServerSettings& settings);

}  // namespace cifar_mpi::comm
