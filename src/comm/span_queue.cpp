#include "comm/span_queue.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace cifar_mpi::comm {
namespace {

using engine::Bytes;
using engine::kComm;

bool any_overlaps(const std::vector<Bytes>& ranges, const Bytes& bytes) {
  return std::ranges::any_of(ranges, [&](const Bytes& range) { return range.overlaps(bytes); });
}

}  // namespace

std::size_t last_user(const std::vector<engine::Task>& compute, std::span<const float> array) {
  const Bytes bytes = engine::bytes_of(array.data(), array.size());
  std::size_t last = compute.size();
  bool written = array.empty();
  for (std::size_t i = 0; i < compute.size(); ++i) {
    const bool writes = any_overlaps(compute[i].writes, bytes);
    written = written || writes;
    if (writes || any_overlaps(compute[i].reads, bytes)) last = i;
  }
  if (!written)
    throw std::logic_error("no task of the step writes a bucket of gradients that is to be summed");
  return std::min(last, compute.size() - 1);
}

SpanQueue::SpanQueue(engine::StepProgram& program, engine::Branches& branches,
                     std::vector<std::size_t> ready_after, std::vector<engine::Task> tasks)
    : program_(program),
      branches_(branches),
      ready_after_(std::move(ready_after)),
      tasks_(std::move(tasks)),
      done_(tasks_.size()) {}

void SpanQueue::run_ready_after(std::size_t position) {
  if (std::ranges::find(ready_after_, position) == ready_after_.end()) return;
  branches_.wait(kComm);
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    if (ready_after_[i] != position) continue;
    program_.run(kComm, std::move(tasks_[i]));
    done_[i] = last_ = program_.set(kComm);
  }
}

}  // namespace cifar_mpi::comm
