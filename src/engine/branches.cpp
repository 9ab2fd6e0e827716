#include "cifar_mpi/engine/branches.hpp"

#include <algorithm>

namespace cifar_mpi::engine {
namespace {

bool overlap(const std::vector<Bytes>& a, const std::vector<Bytes>& b) {
  return std::ranges::any_of(a, [&](const Bytes& x) {
    return std::ranges::any_of(b, [&](const Bytes& y) { return x.overlaps(y); });
  });
}

/// Whether one task writes bytes that the other touches.
bool conflicting(const Task& a, const Task& b) {
  return overlap(a.writes, b.writes) || overlap(a.writes, b.reads) || overlap(a.reads, b.writes);
}

}  // namespace

bool Branches::touches_open(const Task& task) const {
  return std::ranges::any_of(open_, [&](const Task& other) { return conflicting(task, other); });
}

void Branches::run(Task task) {
  if (task.concurrent && concurrent_) {
    if (!forked_) program_.wait(kFirstSide, program_.set(kCompute));
    forked_ = true;
    open_.push_back({task.name, task.reads, task.writes, {}, {}});
    program_.run(kFirstSide, std::move(task));
    return;
  }
  if (touches_open(task)) join();
  program_.run(kCompute, std::move(task));
  forked_ = false;
}

void Branches::run_on(LaneId lane, Task task) {
  if (touches_open(task)) join();
  program_.wait(lane, program_.set(kCompute));
  program_.run(lane, std::move(task));
  program_.wait(kCompute, program_.set(lane));
  forked_ = false;
}

void Branches::wait(LaneId lane) {
  program_.wait(lane, program_.set(kCompute));
  if (!open_.empty()) program_.wait(lane, program_.set(kFirstSide));
}

void Branches::join() {
  if (open_.empty()) return;
  program_.wait(kCompute, program_.set(kFirstSide));
  open_.clear();
}

}  // namespace cifar_mpi::engine
