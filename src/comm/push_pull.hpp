#pragma once

#include <mpi.h>

#include <cstddef>
#include <span>
#include <vector>

#include "cifar_mpi/base/buffer.hpp"
#include "cifar_mpi/comm/update.hpp"
#include "comm/mpi_handle.hpp"
#include "comm/request_list.hpp"

/// The messages between workers and servers. Each is a state machine that a task starts and polls; nothing is
/// allocated after it is made.
namespace cifar_mpi::comm {

/// The ranks of a communicator: `workers` of them, then `servers`.
struct ServerRanks {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int workers = 1;
  int servers = 1;

  bool serves() const { return rank >= workers; }
  int server() const { return rank - workers; }  ///< which one this rank is
  int rank_of_server(int server) const { return workers + server; }
};

/// What all ranks know at the end of a step, besides parameters: the summed control block, and what each
/// update task has left (StepParts::decay_sums). It travels as one message.
class StepFacts {
 public:
  StepFacts(std::span<float> control, std::span<double> decay_sums);

  std::span<std::byte> message() const { return {memory_.data(), memory_.size()}; }
  void pack();
  void unpack();

 private:
  std::span<float> control_;
  std::span<double> decay_sums_;
  Buffer memory_;
};

/// A worker's gradients of one span on their way to its server.
class Push {
 public:
  Push(const ServerRanks& ranks, int server, std::span<const float> gradients);
  void start();
  bool poll();

 private:
  int peer_;
  Request send_;
};

/// A worker's wait for the parameters of all spans, and for the facts of the step from the first server.
class Pull {
 public:
  Pull(const ServerRanks& ranks, std::span<const ParamSpan> spans, std::span<float> params, StepFacts facts);
  void start();
  bool poll();

 private:
  StepFacts facts_;
  RequestList receives_;
};

/// A server's wait for the pushes of all workers: `gradients` becomes their sum in rank order. It is the server's span,
/// headed by the control block for server 0, which hands that on to the other servers when it is summed; they receive
/// it in `control`.
class TakePushes {
 public:
  TakePushes(const ServerRanks& ranks, std::span<float> gradients, std::span<float> control);
  void start();
  bool poll();

 private:
  std::span<float> arrival(int worker) const;
  void add_arrived();

  ServerRanks ranks_;
  std::span<float> gradients_;
  Buffer arrivals_;  ///< of the workers behind the first, whose push arrives where the sum is made
  RequestList receives_;
  std::vector<bool> here_;
  int added_ = 0;
  RequestList orders_;  ///< server 0: sends of the control block; else its receive
  bool ordered_ = false;
};

/// A server's answer to all workers.
class Answer {
 public:
  /// `facts` on server 0 only.
  Answer(const ServerRanks& ranks, std::span<const float> params, StepFacts* facts);
  void start();
  bool poll();

 private:
  StepFacts* facts_;
  RequestList sends_;
};

}  // namespace cifar_mpi::comm
