#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "cifar_mpi/comm/update.hpp"
#include "cifar_mpi/comm/world.hpp"
#include "cifar_mpi/engine/layout.hpp"

/// The update of a parameter server: the last ranks hold the parameters, the others compute gradients for them.
namespace cifar_mpi::comm {

/// Cuts the trained parameters by bytes, at cache lines and not at parameters: whole ones would leave most of
/// some networks on one server. As many spans as servers; some are empty where there is too little.
std::vector<ParamSpan> cut_for_servers(const engine::ParamLayout& layout, int servers);

struct ServerSettings {
  int servers = 1;      ///< fewer than ranks
  bool overlap = true;  ///< false: every push waits for the end of backward
  /// Bits of engine::Request of this rank; what a server is asked is added to what the workers are.
  const std::atomic<int>* requests = nullptr;
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
/// answers; then what finishes the step. A server's: the wait for the pushes, its update, the comparison, the
/// answer, and what finishes the step. Workers have the control block of all ranks behind the step, but the
/// gradients they computed; a server has its own span of the gradients.
///
///   bits    those of a sum in rank order on every rank (`window` on one node), whatever S and the timing
///   memory  a server keeps a copy of its span for each worker but the first; nothing is taken per step
///   throws  Error{comm} from the runner, naming the peer
///
/// Making one communicates: every rank calls it, outside World::together. `world` outlives it. `append` throws
/// std::logic_error for parts with `before_updates`: no rank has the whole sum.
std::unique_ptr<Update> make_server_update(const World& world, const engine::ParamLayout& layout,
                                           const ServerSettings& settings);

}  // namespace cifar_mpi::comm
