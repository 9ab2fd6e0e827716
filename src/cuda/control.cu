#include "cuda/control.hpp"
#include "cuda/launch.cuh"

namespace cifar_mpi::cuda {
namespace {

using engine::ControlLayout;

__global__ void begin(Control work) {
  for (std::size_t i = threadIdx.x; i < work.floats; i += blockDim.x) work.control[i] = 0.0f;
  __syncthreads();
  if (threadIdx.x != 0) return;
  const int asked = work.request_word != nullptr ? *static_cast<const volatile int*>(work.request_word) : 0;
  work.control[ControlLayout::stop] = (asked & engine::kStopRequest) != 0 ? 1.0f : 0.0f;
  work.control[ControlLayout::trace] = (asked & engine::kTraceRequest) != 0 ? 1.0f : 0.0f;
  work.control[ControlLayout::save] = (asked & engine::kSaveRequest) != 0 ? 1.0f : 0.0f;
  if (work.facts == nullptr) return;
  float* const slot = work.control + work.slot;
  slot[ControlLayout::compute_ms] = work.facts->compute_ms;
  for (int piece = 0; piece < 4; ++piece) {
    slot[ControlLayout::hash_pieces + piece] =
        static_cast<float>((work.facts->param_hash >> (16 * piece)) & 0xFFFFu);
  }
  work.facts->started_s = 1e-9 * static_cast<double>(device_nanoseconds());
}

__global__ void note_time(engine::RankFacts* facts) {
  const double now = 1e-9 * static_cast<double>(device_nanoseconds());
  facts->compute_ms = static_cast<float>(1e3 * (now - facts->started_s));
}

__global__ void end(Advance work) {
  const std::uint64_t place = *work.replays % engine::kRecordRing;
  const std::size_t slots = work.slots_floats;
  for (std::size_t i = threadIdx.x; i < slots; i += blockDim.x) {
    work.slots[place * slots + i] = work.control[ControlLayout::header_floats + i];
  }
  __syncthreads();  // all have read the counters
  if (threadIdx.x != 0) return;
  const float loss_sum = work.control[ControlLayout::loss_sum];
  DeviceRecord record;
  record.step = work.step[work.steps - 1];
  record.cross_entropy = static_cast<double>(loss_sum) / work.global_batch;
  for (int i = 0; i < work.buckets; ++i) record.decay_term += work.decay_sums[i];
  record.gradient_norm = work.gradient_norm != nullptr ? *work.gradient_norm : 0.0;
  const bool applied = isfinite(loss_sum) && isfinite(record.decay_term) && isfinite(record.gradient_norm);
  record.correct = work.control[ControlLayout::correct];
  record.samples = work.control[ControlLayout::samples];
  record.stop_requests = work.control[ControlLayout::stop];
  record.trace_requests = work.control[ControlLayout::trace];
  record.save_requests = work.control[ControlLayout::save];
  record.applied = applied ? 1 : 0;
  work.entries[place] = record;
  if (applied) {
    for (int i = 0; i < work.steps; ++i) work.step[i] += static_cast<std::uint64_t>(work.steps);
  }
  ++*work.replays;
}

__global__ void add_one(std::uint64_t* counter) { ++*counter; }

/// A turn takes at least 10 ns, so `turns` ends the hold even if the clock stands still.
__global__ void wait_in_stream(Hold hold, std::uint64_t turns) {
  const volatile std::uint32_t* const opened = hold.opened;
  const std::uint64_t begin = device_nanoseconds();
  for (std::uint64_t turn = 0; turn < turns && device_nanoseconds() - begin < hold.limit_ns; ++turn) {
    if (opened != nullptr && *opened >= hold.ticket) return;
  }
}

}  // namespace

void begin_step(cudaStream_t stream, const Control& work) {
  launch("control", stream, {1, kThreads}, begin, work);
}

void note_compute_time(cudaStream_t stream, engine::RankFacts* facts) {
  launch("compute time", stream, {1, 1}, note_time, facts);
}

void end_step(cudaStream_t stream, const Advance& work) {
  launch("advance", stream, {1, kThreads}, end, work);
}

void count_up(cudaStream_t stream, std::uint64_t* counter) {
  launch("count", stream, {1, 1}, add_one, counter);
}

const char* missing_code() {
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(begin));
  if (status == cudaSuccess) return "";
  static_cast<void>(cudaGetLastError());
  return cudaGetErrorString(status);
}

void hold_stream(cudaStream_t stream, const Hold& hold) {
  launch("hold", stream, {1, 1}, wait_in_stream, hold, hold.limit_ns / 10);
}

}  // namespace cifar_mpi::cuda
