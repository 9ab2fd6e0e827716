#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cifar_mpi/engine/layout.hpp"

/// The first and the last kernel of a training step. All enqueue and return.
namespace cifar_mpi::cuda {

/// Zeroes the control block, sets its words for requests to 1 where this rank asks, and writes this
/// rank's facts into its slot: the compute time of the step before and the parameter hash. Notes when the
/// step began.
struct Control {
  float* control = nullptr;
  std::size_t floats = 0;
  std::size_t slot = 0;                ///< of this rank
  const int* request_word = nullptr;   ///< pinned host memory; null: nobody may ask
  engine::RankFacts* facts = nullptr;  ///< null: the slot stays zero
};
void begin_step(cudaStream_t stream, const Control& work);

/// Notes how long the step took since begin_step.
void note_compute_time(cudaStream_t stream, engine::RankFacts* facts);

/// One step's record as the device leaves it, without its slots, which have an array of their own.
struct DeviceRecord {
  std::uint64_t step = 0;
  double cross_entropy = 0.0;
  double decay_term = 0.0;
  double correct = 0.0;
  double samples = 0.0;
  double stop_requests = 0.0;
  double trace_requests = 0.0;
  double save_requests = 0.0;
  double gradient_norm = 0.0;
  std::uint64_t applied = 0;
};

/// Leaves the record of this replay in the ring and moves the step counter on, if the summed loss, the decay
/// term and the gradient's norm were finite.
struct Advance {
  const float* control = nullptr;
  std::size_t slots_floats = 0;  ///< of all ranks; they stand behind the header
  double global_batch = 0.0;
  const double* decay_sums = nullptr;
  int buckets = 0;
  const double* gradient_norm = nullptr;  ///< null: gradients are not clipped
  std::uint64_t* step = nullptr;
  std::uint64_t* replays = nullptr;
  DeviceRecord* entries = nullptr;  ///< pinned host memory, kRecordRing of them
  float* slots = nullptr;           ///< pinned host memory, those of the control block, of each
  int steps = 1;  ///< of a replay; as many counters stand at `step`, the record is of the last
};
void end_step(cudaStream_t stream, const Advance& work);

/// ++*counter
void count_up(cudaStream_t stream, std::uint64_t* counter);

/// Whether this binary has code for the current device. Empty, or the runtime's words.
const char* missing_code();

/// Longer than a host takes to enqueue the few kernels of a task (3 to 6 µs each).
constexpr std::uint64_t kDelayNanoseconds = 25'000;

/// Keeps the stream busy for about kDelayNanoseconds. Between two events on an idle stream lies also the time
/// that the host takes to enqueue what is to be measured; with this in front of the first, the device reaches
/// them when all of it is there, and what lies between them is the device's alone. Enqueues and returns.
void enqueue_delay_kernel(cudaStream_t stream);

}  // namespace cifar_mpi::cuda
