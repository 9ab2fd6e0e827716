#include "cuda/stopwatches.hpp"

#include <algorithm>
#include <cmath>

#include "cifar_mpi/base/clock.hpp"
#include "cuda/check.hpp"

namespace cifar_mpi::cuda {

void Anchor::set(cudaStream_t stream) {
  constexpr int kAttempts = 8;
  std::int64_t shortest = INT64_MAX;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    Event event = make_event(true);
    const std::int64_t before = steady_nanoseconds();
    check(cudaEventRecord(event.get(), stream), "reading the device's clock");
    check(cudaEventSynchronize(event.get()), "reading the device's clock");
    const std::int64_t took = steady_nanoseconds() - before;
    if (took >= shortest) continue;
    shortest = took;
    host_ns_ = before + took / 2;
    event_ = std::move(event);
  }
}

std::int64_t Anchor::host_nanoseconds(const Event& event) const {
  float milliseconds = 0.0f;
  check(cudaEventElapsedTime(&milliseconds, event_.get(), event.get()), "reading the device's clock");
  return host_ns_ + std::llround(1e6 * static_cast<double>(milliseconds));
}

void Stopwatches::make(std::size_t tasks) {
  while (begins_.size() < tasks) begins_.push_back(make_event(true));
  while (ends_.size() < tasks) ends_.push_back(make_event(true));
  ran_.resize(tasks, false);
}

void Stopwatches::record(const std::vector<Event>& events, engine::TaskId task, cudaStream_t stream) {
  check(cudaEventRecord(events[static_cast<std::size_t>(task)].get(), stream), "noting a task's time");
}

std::int64_t Stopwatches::read(const Anchor& anchor, engine::Recorder& recorder) {
  std::vector<engine::Recorder::Slice> slices;
  std::int64_t last = 0;
  for (std::size_t task = 0; task < begins_.size(); ++task) {
    if (!ran_[task]) continue;
    ran_[task] = false;
    const std::int64_t begin = anchor.host_nanoseconds(begins_[task]);
    const std::int64_t end = std::max(begin, anchor.host_nanoseconds(ends_[task]));
    slices.push_back({static_cast<engine::TaskId>(task), begin, end});
    last = std::max(last, end);
  }
  if (slices.empty()) return last;
  std::stable_sort(slices.begin(), slices.end(),
                   [](const auto& a, const auto& b) { return a.begin_ns < b.begin_ns; });
  recorder.begin_replay(slices.front().begin_ns);
  for (const engine::Recorder::Slice& slice : slices) recorder.add(slice.task, slice.begin_ns, slice.end_ns);
  return last;
}

}  // namespace cifar_mpi::cuda
