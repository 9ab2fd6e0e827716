#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/stand_in/memory.hpp"

/// Streams, events and graphs. CUDA's handles point to these structs.
namespace cifar_mpi::stand_in {

struct Work {
  std::function<void()> run;
  bool waits = false;  ///< for other ranks or the host, so that no thread of the host may run it
};

struct Node {
  Work work;
  std::vector<std::size_t> after;  ///< nodes of the same graph
  int priority = 0;                ///< of the stream that it was captured from
};
using Nodes = std::vector<Node>;

/// One record of an event: a wait refers to this record, whatever is recorded later.
struct Moment {
  bool happened = false;
  double seconds = 0.0;  ///< time of completion
};

/// One entry of a stream: work, an event to record, an event to wait for, or a graph.
struct Item {
  enum class Kind : std::uint8_t { work, note, wait, graph };
  Kind kind = Kind::work;
  Work work;
  std::shared_ptr<Moment> moment;      ///< null: of an event that was not recorded
  std::shared_ptr<const Nodes> graph;  ///< and its completed nodes
  std::vector<bool> done;
  std::vector<std::size_t> ranks;  ///< of its nodes: the highest of those that may run is next
};

struct Capture {
  Nodes nodes;
  CUstream_st* origin = nullptr;
  std::uint64_t id = 0;  ///< from 1 on
  bool broken = false;
};

}  // namespace cifar_mpi::stand_in

struct CUstream_st {
  std::deque<cifar_mpi::stand_in::Item> items;
  std::shared_ptr<cifar_mpi::stand_in::Capture> capture;
  std::vector<std::size_t> frontier;  ///< nodes that the next node of a capture depends on
  std::size_t rank = 0;               ///< the highest of the streams that can continue runs next
  int priority = 0;
  bool ended = false;
};

struct CUevent_st {
  bool timed = false;
  std::shared_ptr<cifar_mpi::stand_in::Moment> last;      ///< null: never recorded
  std::shared_ptr<cifar_mpi::stand_in::Capture> capture;  ///< it was recorded in, and after which nodes
  std::vector<std::size_t> frontier;
};

struct CUgraph_st {
  std::shared_ptr<const cifar_mpi::stand_in::Nodes> nodes;
};

struct CUgraphExec_st {
  std::shared_ptr<const cifar_mpi::stand_in::Nodes> nodes;
  int launches = 0;
};

namespace cifar_mpi::stand_in {

/// The only GPU of a process. All functions are thread-safe; they return what CUDA's return.
///
/// Its thread runs what is enqueued, and so do threads of the host while they wait: a switch between two threads for each
/// entry takes longer than most entries, and much longer on busy cores. One entry runs at a time.
class Queues {
 public:
  static Queues& get();

  CUstream_st* make_stream();
  cudaError_t end_stream(CUstream_st* stream);
  cudaError_t start(CUstream_st* stream, Work work);
  cudaError_t record(CUevent_st* event, CUstream_st* stream);
  cudaError_t wait(CUstream_st* stream, CUevent_st* event);
  cudaError_t finish(CUstream_st* stream);
  cudaError_t finish_all();
  /// Whether all started work is done.
  bool idle();
  cudaError_t query(CUevent_st* event);
  cudaError_t finish(CUevent_st* event);
  cudaError_t elapsed(float* milliseconds, CUevent_st* begin, CUevent_st* end);

  cudaError_t begin_capture(CUstream_st* stream, cudaStreamCaptureMode mode);
  cudaError_t end_capture(CUstream_st* stream, CUgraph_st** graph);
  /// The id of the stream's capture; 0: none.
  std::uint64_t capture_of(const CUstream_st* stream);
  cudaError_t launch(CUgraphExec_st* graph, CUstream_st* stream);
  /// For calls that are not allowed during a capture: breaks the current one. cudaSuccess without one.
  cudaError_t refuse_in_capture();

  /// Records an error for cudaGetLastError and returns it.
  cudaError_t fail(cudaError_t error);
  cudaError_t last_error();

  DeviceMemory memory;

 private:
  Queues();
  [[noreturn]] void work_off();
  std::vector<CUstream_st*> able_streams() const;
  CUstream_st* choose(const std::vector<CUstream_st*>& able);
  /// The number of nodes if none is left.
  static std::size_t next_node(Item& item);
  void hold_back(std::unique_lock<std::mutex>& lock);
  bool all_empty() const;
  void remove(CUstream_st* stream);
  /// Runs one entry, or one node of a graph. Returns false if there is none, another thread runs one, or the next one is
  /// not for this thread.
  bool run_one(std::unique_lock<std::mutex>& lock, bool on_host);
  void wake();
  void run(const Work& work, std::unique_lock<std::mutex>& lock);
  cudaError_t joins(CUstream_st* stream, CUevent_st* event);
  /// Returns when `done()`, or an error.
  template <class Done>
  cudaError_t wait_until(std::unique_lock<std::mutex>& lock, Done done);

  std::mutex mutex_;
  std::condition_variable changed_;  ///< for threads of the host that wait
  std::condition_variable wanted_;   ///< for the GPU's thread
  std::vector<CUstream_st*> streams_;
  std::shared_ptr<Capture> capture_;  ///< under way
  std::uint64_t captures_ = 0;        ///< begun so far
  int waiting_ = 0;                   ///< threads of the host
  bool busy_ = false;                 ///< a thread runs work
  std::uint64_t runs_ = 0;            ///< of work
  bool open_ = false;                 ///< memory
  bool asked_ = false;                ///< the host has queried an event since the last pause
  cudaError_t last_ = cudaSuccess;
  cudaError_t broken_ = cudaSuccess;  ///< the result of every call from now on
};

}  // namespace cifar_mpi::stand_in
