#include "cuda/host_link.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "cuda/control.hpp"
#include "cuda/handles.hpp"

namespace cifar_mpi::cuda {
namespace {

using engine::Bytes;
using engine::kRecordRing;

template <class Ranges>
bool touches(const engine::StepProgram& program, Ranges ranges, const Bytes& bytes) {
  return std::ranges::any_of(program.tasks(), [&](const engine::Task& task) {
    return std::ranges::any_of((task.*ranges), [&](const Bytes& range) { return range.overlaps(bytes); });
  });
}

}  // namespace

Buffer allocate_pinned(std::size_t bytes) {
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, std::max<std::size_t>(bytes, 1), cudaHostAllocDefault),
        "taking pinned host memory");
  std::memset(memory, 0, bytes);
  return {static_cast<std::byte*>(memory), bytes, [memory] {
            // While an exception unwinds, a kernel may wait for a rank that is gone, and this would wait with
            // it.
            if (std::uncaught_exceptions() == 0) static_cast<void>(cudaFreeHost(memory));
          }};
}

const DeviceRecord& RecordRing::entry(std::uint64_t replay) const {
  return entries.as<const DeviceRecord>()[replay % kRecordRing];
}

const float* RecordRing::slots_of(std::uint64_t replay) const {
  return slots.as<const float>() + (replay % kRecordRing) * slot_floats;
}

void RecordRing::deliver(std::uint64_t done) {
  for (; delivered < done; ++delivered) {
    const DeviceRecord& from = entry(delivered);
    engine::StepRecord& to = (*records)[engine::record_place(from.step, steps)];
    to.step = from.step;
    to.cross_entropy = from.cross_entropy;
    to.decay_term = from.decay_term;
    to.gradient_norm = from.gradient_norm;
    to.correct = from.correct;
    to.samples = from.samples;
    to.stop_requests = from.stop_requests;
    to.trace_requests = from.trace_requests;
    to.save_requests = from.save_requests;
    to.applied = from.applied != 0;
    std::copy_n(slots_of(delivered), slot_floats, to.slots.begin());
  }
}

void Gate::close(cudaStream_t stream, std::size_t tasks) {
  constexpr std::uint64_t kLimitNanoseconds = 1'000'000;
  if (opened_.size() == 0) opened_ = allocate_pinned(sizeof(std::uint32_t));
  hold_stream(stream, {opened_.as<std::uint32_t>(), ++tickets_,
                       kLimitNanoseconds * std::min<std::size_t>(tasks, 20)});
}

void Gate::open() {
  if (opened_.size() == 0) return;
  std::atomic_ref<std::uint32_t>(*opened_.as<std::uint32_t>()).store(tickets_, std::memory_order_release);
}

const int* HostLink::request_word(const std::atomic<int>* source) {
  for (const RequestWord& word : words_) {
    if (word.source == source) return word.word.as<const int>();
  }
  words_.push_back({source, allocate_pinned(sizeof(int))});
  return words_.back().word.as<const int>();
}

RecordRing& HostLink::add_ring(std::size_t slot_floats, int steps, Buffer counter,
                               std::vector<engine::StepRecord>& records) {
  records.resize(kRecordRing);
  for (engine::StepRecord& record : records) record.slots.resize(slot_floats);
  RecordRing ring;
  ring.entries = allocate_pinned(kRecordRing * sizeof(DeviceRecord));
  ring.slots = allocate_pinned(kRecordRing * slot_floats * sizeof(float));
  ring.replays = std::move(counter);
  ring.slot_floats = slot_floats;
  ring.steps = static_cast<std::uint64_t>(steps);
  ring.records = &records;
  rings_.push_back(std::move(ring));
  return rings_.back();
}

std::vector<const RequestWord*> HostLink::words_read_by(const engine::StepProgram& program) const {
  std::vector<const RequestWord*> found;
  for (const RequestWord& word : words_) {
    if (touches(program, &engine::Task::reads, engine::bytes_of(word.word.data(), sizeof(int)))) {
      found.push_back(&word);
    }
  }
  return found;
}

std::vector<RecordRing*> HostLink::rings_written_by(const engine::StepProgram& program) {
  std::vector<RecordRing*> found;
  for (RecordRing& ring : rings_) {
    if (touches(program, &engine::Task::writes, engine::bytes_of(ring.entries.data(), ring.entries.size()))) {
      found.push_back(&ring);
    }
  }
  return found;
}

}  // namespace cifar_mpi::cuda
