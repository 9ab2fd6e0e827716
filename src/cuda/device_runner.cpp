#include "cuda/device_runner.hpp"

#include <nvtx3/nvToolsExt.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cuda/handles.hpp"

namespace cifar_mpi::cuda {
namespace {

using engine::Instruction;
using engine::kCompute;

/// How often a waiting host checks whether the run can continue.
constexpr double kWatchSeconds = 0.1;

/// Names a range of the host's time for profilers.
class Range {
 public:
  explicit Range(const std::string& name) { nvtxRangePushA(name.c_str()); }
  ~Range() { nvtxRangePop(); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
};

}  // namespace

DeviceRunner::DeviceRunner(Device& device, engine::StepProgram program)
    : device_(device),
      program_(std::move(program)),
      words_(device.link().words_read_by(program_)),
      rings_(device.link().rings_written_by(program_)),
      clock_(program_.tasks().size()) {
  for (engine::LaneId lane = 0; lane < program_.lanes(); ++lane) lanes_.emplace_back(device.stream(lane));
  for (Launch& launch : launches_) launch.done = make_event();
}

void DeviceRunner::replay(int times) {
  const int launches = recorder_ != nullptr ? times : 1;
  for (int i = 0; i < launches; ++i) launch(times / launches);
}

void DeviceRunner::finish() {
  wait_until(launches_[launched_ % launches_.size()]);  // the older one
  wait_until(launches_[(launched_ + 1) % launches_.size()]);
}

void DeviceRunner::observe(const engine::Observation& observation) {
  look_ = observation.look;
  if (recorder_ == nullptr && observation.recorder == nullptr) return;
  finish();
  if (recorder_ != nullptr) recorder_->end_replay(device_end_);
  recorder_ = observation.recorder;
  if (recorder_ == nullptr) return;
  for (Launch& launch : launches_) launch.watches.make(program_.tasks().size());
  anchor_.set(stream(kCompute));
}

void DeviceRunner::start(const Instruction& line) {
  const Range range(task(line.target).name);
  const cudaStream_t lane = stream(line.lane);
  if (recording()) watches().begin(line.target, lane);
  if (is_of_host(line.target)) {
    clock_.progress();
    clock_.charge(line.target);
  }
  try {
    task(line.target).start(lanes_[static_cast<std::size_t>(line.lane)]);
  } catch (const Error& error) {
    throw Error(error.kind(), "task '", task(line.target).name, "': ", error.what());
  }
  if (recording() && !is_of_host(line.target)) watches().end(line.target, lane);
}

bool DeviceRunner::poll(const Instruction& line) {
  clock_.charge(line.target);
  if (!task(line.target).poll()) return false;
  clock_.progress();
  clock_.charge_nobody();
  if (recording()) watches().end(line.target, stream(line.lane));
  return true;
}

void DeviceRunner::wait_for(const Event& event, const std::string& what) {
  looked_ = steady_seconds();
  while (!has_happened(event, what)) give_way();
}

void DeviceRunner::give_way() {
  sched_yield();
  const double now = steady_seconds();
  if (now - looked_ < kWatchSeconds) return;
  looked_ = now;
  for (const auto& watch : device_.link().watches) watch();
}

void DeviceRunner::launch(int times) {
  for (const RequestWord* word : words_) {
    const int asked = word->source->load(std::memory_order_relaxed);
    std::atomic_ref<int>(*word->word.as<int>()).store(asked, std::memory_order_relaxed);
  }
  Launch& before = launches_[(launched_ + 1) % launches_.size()];
  Launch& launch = launches_[launched_ % launches_.size()];
  launch.recorded = recording();
  clock_.begin();
  enqueue(times);
  check(cudaEventRecord(launch.done.get(), stream(kCompute)), "marking the end of a replay");
  launch.replays = before.replays + static_cast<std::uint64_t>(times);
  ++launched_;
  wait_until(before);
}

void DeviceRunner::wait_until(Launch& launch) {
  if (finished_ >= launch.replays) return;
  wait_for(launch.done, concat("running ", program_.name()));
  finished_ = launch.replays;
  clock_.show_progress();
  if (launch.recorded) device_end_ = launch.watches.read(anchor_, *recorder_);
  for (RecordRing* ring : rings_) ring->deliver(finished_);
}

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
  std::ranges::stable_sort(slices, {}, &engine::Recorder::Slice::begin_ns);
  recorder.begin_replay(slices.front().begin_ns);
  for (const engine::Recorder::Slice& slice : slices) recorder.add(slice.task, slice.begin_ns, slice.end_ns);
  return last;
}

}  // namespace cifar_mpi::cuda
