#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cifar_mpi/engine/layout.hpp"

/// The first and the last kernel of a training step. All enqueue and return.
namespace cifar_mpi::cuda {

/// Zeroes the control block, sets the words of this rank's requests to 1, and writes this rank's facts into its slot:
/// the compute time of the previous step and the parameter hash. Stores when the step began.
struct Control {
  float* control = nullptr;
  std::size_t floats = 0;
  std::size_t slot = 0;                ///< of this rank
  const int* request_word = nullptr;   ///< pinned host memory; null: no requests
  engine::RankFacts* facts = nullptr;  ///< null: the slot stays zero
};
void begin_step(cudaStream_t stream, const Control& work);

/// Stores the time since begin_step.
void note_compute_time(cudaStream_t stream, engine::RankFacts* facts);

/// One step's record as the device writes it, without its slots, which have a separate array.
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

/// Writes the record of this replay into the ring, and advances the step counter if the summed loss, the decay term and
/// the norm of the gradient are finite.
struct Advance {
  const float* control = nullptr;
  std::size_t slots_floats = 0;  ///< of all ranks, after the header
  double global_batch = 0.0;
  const double* decay_sums = nullptr;
  int buckets = 0;
  const double* gradient_norm = nullptr;  ///< null: gradients are not clipped
  std::uint64_t* step = nullptr;
  std::uint64_t* replays = nullptr;
  DeviceRecord* entries = nullptr;  ///< pinned host memory, kRecordRing of them
  float* slots = nullptr;           ///< pinned host memory: the slots of the control block for each entry
  int steps = 1;                    ///< per replay, each with a counter at `step`; the record is of the last
};
void end_step(cudaStream_t stream, const Advance& work);

/// ++*counter
void count_up(cudaStream_t stream, std::uint64_t* counter);

/// Empty if this binary has code for the current device, else the runtime's message.
const char* missing_code();

/// Holds the stream until *opened is at least `ticket`, at most for `limit_ns`. hold_stream enqueues and returns.
struct Hold {
  const std::uint32_t* opened = nullptr;  ///< pinned host memory; null: holds for limit_ns
  std::uint32_t ticket = 0;
  std::uint64_t limit_ns = 0;
};
void hold_stream(cudaStream_t stream, const Hold& hold);

}  // namespace cifar_mpi::cuda
