#include "cuda/lanes_runner.hpp"

#include <utility>

#include "cuda/check.hpp"
#include "cuda/delay_kernel.hpp"

namespace cifar_mpi::cuda {

using engine::kCompute;
using engine::Op;

LanesRunner::LanesRunner(Device& device, engine::StepProgram program)
    : DeviceRunner(device, std::move(program)), fork_(make_event()) {
  for (int mark = 0; mark < program_.marks(); ++mark) marks_.push_back(make_event());
  for (int lane = 0; lane < program_.lanes(); ++lane) joins_.push_back(make_event());
}

void LanesRunner::enqueue(int times) {
  for (int i = 0; i < times; ++i) enqueue_once();
}

void LanesRunner::enqueue_once() {
  fork();
  for (const engine::Instruction& line : program_.instructions()) {
    switch (line.op) {
      case Op::run:
        if (!skips(line.target)) start(line);
        break;
      case Op::set:
        set(line.lane, line.target);
        break;
      case Op::wait:
        wait(line.lane, line.target);
        break;
    }
  }
  join();
}

void LanesRunner::fork() {
  if (recording()) hold_back();
  check(cudaEventRecord(fork_.get(), stream(kCompute)), "setting a mark");
  for (engine::LaneId lane = 1; lane < program_.lanes(); ++lane) wait_for_event(lane, fork_);
}

void LanesRunner::join() {
  for (engine::LaneId lane = 1; lane < program_.lanes(); ++lane) {
    const Event& join = joins_[static_cast<std::size_t>(lane)];
    check(cudaEventRecord(join.get(), stream(lane)), "setting a mark");
    wait_for_event(kCompute, join);
  }
}

/// Until the replay is enqueued: else the times would show how long the host takes to do so, which a graph does not.
void LanesRunner::hold_back() const {
  constexpr std::uint64_t kPerTask = 20'000;  // ns; a few kernels and two events
  const std::uint64_t delays = kPerTask * program_.tasks().size() / kDelayNanoseconds + 1;
  for (std::uint64_t i = 0; i < delays; ++i) enqueue_delay_kernel(stream(kCompute));
}

void LanesRunner::set(engine::LaneId lane, engine::MarkId mark) const {
  check(cudaEventRecord(marks_[static_cast<std::size_t>(mark)].get(), stream(lane)), "setting a mark");
}

void LanesRunner::wait(engine::LaneId lane, engine::MarkId mark) const {
  wait_for_event(lane, marks_[static_cast<std::size_t>(mark)]);
}

void LanesRunner::wait_for_event(engine::LaneId lane, const Event& event) const {
  check(cudaStreamWaitEvent(stream(lane), event.get(), 0), "waiting for a mark");
}

HostLanesRunner::HostLanesRunner(Device& device, engine::StepProgram program)
    : LanesRunner(device, std::move(program)),
      queues_(static_cast<std::size_t>(program_.lanes())),
      set_in_(static_cast<std::size_t>(program_.marks()), 0) {
  for (const engine::Instruction& line : program_.instructions())
    queues_[static_cast<std::size_t>(line.lane)].lines.push_back(line);
  for (Queue& queue : queues_) queue.drained = make_event();
}

void HostLanesRunner::enqueue(int times) {
  for (int i = 0; i < times; ++i) enqueue_once();
}

void HostLanesRunner::enqueue_once() {
  ++replay_;
  for (Queue& queue : queues_) queue.next = 0, queue.phase = Phase::ahead;
  fork();
  for (bool done = false; !done;) {
    bool moved = false;
    done = true;
    for (Queue& queue : queues_) {
      moved = advance(queue) || moved;
      done = done && queue.done();
    }
    if (!moved && !done) give_way();
  }
  join();
}

/// As far as the lane goes now; true when that was anywhere.
bool HostLanesRunner::advance(Queue& queue) {
  const std::size_t before = queue.next;
  while (!queue.done() && is_past(queue.lines[queue.next], queue)) ++queue.next;
  return queue.next != before;
}

/// Enqueues the line, or moves on what it waits for; true when the lane may go on behind it.
bool HostLanesRunner::is_past(const engine::Instruction& line, Queue& queue) {
  const auto target = static_cast<std::size_t>(line.target);
  switch (line.op) {
    case Op::set:
      set(line.lane, line.target);
      set_in_[target] = replay_;
      return true;
    case Op::wait:
      if (set_in_[target] != replay_) return false;
      wait(line.lane, line.target);
      return true;
    case Op::run:
      if (skips(line.target)) return true;
      if (is_of_host(line.target)) return is_past_host(line, queue);
      start(line);
      return true;
  }
  return true;
}

bool HostLanesRunner::is_past_host(const engine::Instruction& line, Queue& queue) {
  if (queue.phase == Phase::ahead) {
    check(cudaEventRecord(queue.drained.get(), stream(line.lane)), "setting a mark");
    queue.phase = Phase::lane_drains;
  }
  if (queue.phase == Phase::lane_drains) {
    if (!has_happened(queue.drained, task(line.target).name)) return false;
    start(line);
    queue.phase = Phase::under_way;
  }
  if (!poll(line)) return false;
  queue.phase = Phase::ahead;
  return true;
}

}  // namespace cifar_mpi::cuda
