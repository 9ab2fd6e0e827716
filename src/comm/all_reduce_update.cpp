#include "cifar_mpi/comm/all_reduce_update.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/engine/branches.hpp"

namespace cifar_mpi::comm {
namespace {

using engine::Bytes;
using engine::kComm;
using engine::kCompute;
using engine::MarkId;
using engine::StepProgram;
using engine::Task;

/// What one bucket's all-reduce sums; the first also carries the control block, which stands before the
/// gradients.
std::span<float> array_of(std::size_t index, const ParamSpan& bucket, const StepParts& parts) {
  if (index == 0) return {parts.control.data(), parts.control.size() + bucket.end};
  return parts.grads.subspan(bucket.begin, bucket.end - bucket.begin);
}

bool any_overlaps(const std::vector<Bytes>& ranges, const Bytes& bytes) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const Bytes& range) { return range.overlaps(bytes); });
}

/// The last compute task that touches the bucket. A task that reads it wants this rank's gradient, not yet
/// the sum.
std::size_t last_user(const std::vector<Task>& compute, std::span<const float> array) {
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

void check_parts(const StepParts& parts, std::span<const ParamSpan> buckets) {
  if (parts.compute.empty()) throw std::logic_error("a step without compute tasks");
  if (parts.control.data() + parts.control.size() != parts.grads.data()) {
    throw std::logic_error("the control block does not end where the gradients begin");
  }
  if (parts.update.size() != buckets.size()) {
    throw std::logic_error(
        concat("one update task per bucket: ", parts.update.size(), " tasks, ", buckets.size(), " buckets"));
  }
  if (buckets.back().end != parts.grads.size())
    throw std::logic_error("the buckets do not end with the gradients");
}

/// Lets the comm lane wait for what there is, and then run the all-reduces of all buckets that are ready
/// after compute task `position`. Returns through `sums` the mark behind each.
class BucketQueue {
 public:
  BucketQueue(StepProgram& program, engine::Branches& branches, std::vector<std::size_t> ready_after,
              std::vector<Task> all_reduces)
      : program_(program),
        branches_(branches),
        ready_after_(std::move(ready_after)),
        all_reduces_(std::move(all_reduces)),
        sums_(all_reduces_.size()) {}

  void run_ready_after(std::size_t position) {
    if (std::find(ready_after_.begin(), ready_after_.end(), position) == ready_after_.end()) return;
    branches_.wait(kComm);
    for (std::size_t i = 0; i < all_reduces_.size(); ++i) {
      if (ready_after_[i] != position) continue;
      program_.run(kComm, std::move(all_reduces_[i]));
      sums_[i] = last_ = program_.set(kComm);
    }
  }

  MarkId sum(std::size_t bucket) const { return sums_[bucket]; }
  /// Behind all sums so far: a lane keeps its order.
  MarkId last() const { return last_; }

 private:
  StepProgram& program_;
  engine::Branches& branches_;
  std::vector<std::size_t> ready_after_;
  std::vector<Task> all_reduces_;
  std::vector<MarkId> sums_;
  MarkId last_ = {};
};

/// The step of one rank alone: there is nothing to sum.
void append_alone(engine::Branches& branches, StepParts parts) {
  for (Task& task : parts.compute) branches.run(std::move(task));
  if (parts.before_updates) branches.run(std::move(*parts.before_updates));
  for (Task& task : parts.update) branches.run(std::move(task));
  for (Task& task : parts.finish) branches.run(std::move(task));
  branches.join();
}

}  // namespace

std::vector<ParamSpan> plan_buckets(const engine::ParamLayout& layout, std::size_t bucket_bytes) {
  if (bucket_bytes == 0) {
    throw Error(ErrorKind::usage, "a bucket of 0 bytes holds nothing; use 1 for one bucket per parameter");
  }
  std::vector<ParamSpan> buckets;
  std::size_t begin = 0;
  for (std::size_t i = 1; i < layout.entries.size(); ++i) {
    const std::size_t end = layout.entries[i].offset;
    if (end >= layout.trained_floats) break;
    if ((end - begin) * sizeof(float) < bucket_bytes) continue;
    buckets.push_back({begin, end});
    begin = end;
  }
  buckets.push_back({begin, layout.trained_floats});
  return buckets;
}

AllReduceUpdate::AllReduceUpdate(std::unique_ptr<Collective> collective, const engine::ParamLayout& layout,
                                 const AllReduceSettings& settings)
    : collective_(std::move(collective)),
      settings_(settings),
      buckets_(plan_buckets(layout, static_cast<std::size_t>(settings.bucket_mib * (1 << 20)))) {}

RunFingerprint AllReduceUpdate::settings() const {
  return {{"all-reduce", std::string(collective_->resolved())},
          {"wire", std::string(to_string(settings_.wire))},
          {"bucket MiB", fmt::format("{:g}", settings_.bucket_mib)}};
}

Buffer AllReduceUpdate::allocate(std::size_t control_floats) {
  return collective_->allocate((control_floats + buckets_.back().end) * sizeof(float));
}

void AllReduceUpdate::append(StepProgram& program, StepParts parts, Concurrency concurrent) {
  check_parts(parts, buckets_);
  engine::Branches branches(program, concurrent.branches);
  if (collective_->ranks() == 1) return append_alone(branches, std::move(parts));

  std::vector<std::size_t> ready_after;
  std::vector<Task> all_reduces;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const std::span<float> array = array_of(i, buckets_[i], parts);
    const std::size_t last = last_user(parts.compute, array);
    ready_after.push_back(settings_.overlap && concurrent.exchange ? last : parts.compute.size() - 1);
    all_reduces.push_back(collective_->all_reduce(concat("all-reduce of bucket ", i), array,
                                                  i == 0 ? parts.control.size() : 0));
    all_reduces.back().kind = engine::TaskKind::collective;
  }

  BucketQueue queue(program, branches, std::move(ready_after), std::move(all_reduces));
  for (std::size_t i = 0; i < parts.compute.size(); ++i) {
    branches.run(std::move(parts.compute[i]));
    queue.run_ready_after(i);
  }
  const bool all_first = parts.before_updates.has_value();
  if (all_first) {
    program.wait(kCompute, queue.last());
    branches.run(std::move(*parts.before_updates));
  }
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    if (!all_first) program.wait(kCompute, queue.sum(i));
    branches.run(std::move(parts.update[i]));
  }
  for (Task& task : parts.finish) branches.run(std::move(task));
  branches.join();
}

}  // namespace cifar_mpi::comm
