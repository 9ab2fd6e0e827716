#pragma once

#include <mpi.h>

#include <cstddef>
#include <span>
#include <vector>

#include "cifar_mpi/base/buffer.hpp"
#include "cifar_mpi/comm/update.hpp"
#include "comm/mpi_handle.hpp"
#include "comm/request_list.hpp"

/// The messages between workers and servers, from a worker's view. Each is a state machine that a task starts
/// and polls; it allocates only when it is made.
namespace cifar_mpi::comm {

/// The tags of the messages.
enum Tag : int { kPush = 1, kParams, kFacts, kOrder };

/// The count of a message. Throws Error{usage} if it is too large for one message.
int count_of(std::size_t items);

/// The ranks of a communicator: `workers` of them, then `servers`.
struct ServerRanks {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int workers = 1;
  int servers = 1;

  bool serves() const { return rank >= workers; }
  int server() const { return rank - workers; }  ///< the index of this server
  int rank_of_server(int server) const { return workers + server; }
};

/// The facts that all ranks know at the end of a step, besides parameters: the summed control block, the update tasks'
/// StepState::decay_sums, the step's number, and the counts of pushes. They are sent as one message.
class StepFacts {
 public:
  /// The arrays must outlive it.
  explicit StepFacts(std::vector<std::span<std::byte>> arrays);

  std::span<std::byte> message() const { return {memory_.data(), memory_.size()}; }
  void pack();
  void unpack();

 private:
  std::vector<std::span<std::byte>> arrays_;
  Buffer memory_;
};

/// Sends a worker's gradients of one span to its server.
class Push {
 public:
  Push(const ServerRanks& ranks, int server, std::span<const float> gradients);
  void start();
  bool poll();

 private:
  int peer_;
  Request send_;
};

/// Receives the parameters of all spans, and the facts of the step from the first server.
class Pull {
 public:
  Pull(const ServerRanks& ranks, std::span<const ParamSpan> spans, std::span<float> params, StepFacts facts);
  void start();
  bool poll();

 private:
  StepFacts facts_;
  RequestList receives_;
};

}  // namespace cifar_mpi::comm
