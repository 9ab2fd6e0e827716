#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cifar_mpi/engine/layout.hpp"
#include "cuda/device_record.hpp"

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

}  // namespace cifar_mpi::cuda
