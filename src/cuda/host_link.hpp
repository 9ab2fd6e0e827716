#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "cifar_mpi/base/buffer.hpp"
#include "cifar_mpi/engine/layout.hpp"
#include "cifar_mpi/engine/program.hpp"

/// The few words that the host and a finalized program exchange: stop requests in, step records out.
namespace cifar_mpi::cuda {

struct DeviceRecord;

/// Host memory that kernels access by the same address. Throws Error{device}.
Buffer allocate_pinned(std::size_t bytes);

/// A word that tasks read and `before_replay` copies from an atomic of the host.
struct RequestWord {
  const std::atomic<int>* source = nullptr;
  Buffer word;  ///< pinned, one int
};

/// Records of one program: replay n writes entry n % kRecordRing.
struct RecordRing {
  Buffer entries;  ///< pinned, kRecordRing DeviceRecords
  Buffer slots;    ///< pinned, kRecordRing · slot_floats floats
  Buffer replays;  ///< device memory, one counter
  std::size_t slot_floats = 0;
  std::uint64_t steps = 1;  ///< of a replay
  std::vector<engine::StepRecord>* records = nullptr;
  std::uint64_t delivered = 0;  ///< replays whose records have been copied

  const DeviceRecord& entry(std::uint64_t replay) const;
  const float* slots_of(std::uint64_t replay) const;
  /// Copies the records of the replays before `done` to records[record_place(step, steps)].
  void deliver(std::uint64_t done);
};

/// Closes a stream while the host enqueues what it measures. On an idle stream, the time between two events includes the
/// time that the host takes to enqueue the kernels between them: 3 to 6 µs for a kernel, 150 µs for a convolution of
/// cuDNN (seen on an H200).
class Gate {
 public:
  /// Until the next open(); at most 1 ms per task, and 20 ms. The limit ends a wait for a library that makes the host wait
  /// for the device, as loading a kernel may, and that of a host whose launches fill the stream's queue.
  void close(cudaStream_t stream, std::size_t tasks);
  void open();

 private:
  Buffer opened_;  ///< pinned, the last ticket that is open
  std::uint32_t tickets_ = 0;
};

/// Owned by the backend; its addresses do not change while it lives.
class HostLink {
 public:
  /// The pinned word of `source`, made at the first call for it.
  const int* request_word(const std::atomic<int>* source);
  RecordRing& add_ring(std::size_t slot_floats, int steps, Buffer counter,
                       std::vector<engine::StepRecord>& records);

  std::vector<const RequestWord*> words_read_by(const engine::StepProgram& program) const;
  std::vector<RecordRing*> rings_written_by(const engine::StepProgram& program);

  /// Called every 0.1 s while the host waits for the device; they throw if the run cannot continue.
  std::list<std::function<void()>> watches;

  Gate gate;

 private:
  std::list<RequestWord> words_;
  std::list<RecordRing> rings_;
};

}  // namespace cifar_mpi::cuda
