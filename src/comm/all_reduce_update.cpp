#include "cifar_mpi/comm/all_reduce_update.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <utility>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/engine/branches.hpp"
#include "comm/span_queue.hpp"

namespace cifar_mpi::comm {
namespace {

using engine::kCompute;
using engine::StepProgram;
using engine::Task;

/// The buckets that this step sums: those of all blocks, or of the first alone.
std::span<const ParamSpan> buckets_of(const StepParts& parts, const std::vector<ParamSpan>& buckets,
                                      int blocks) {
  if (parts.compute.empty()) throw std::logic_error("a step without compute tasks");
  const std::size_t tasks = parts.update.size();
  if (tasks != buckets.size() && tasks != buckets.size() / static_cast<std::size_t>(blocks)) {
    throw std::logic_error(
        concat("one update task per bucket: ", tasks, " tasks, ", buckets.size(), " buckets"));
  }
  return std::span(buckets).first(tasks);
}

/// A single rank sends nothing, and updates everything at once.
std::vector<ParamSpan> plan_blocks(const engine::ParamLayout& layout, const AllReduceSettings& settings,
                                   int ranks) {
  const std::vector<ParamSpan> first =
      ranks == 1 ? std::vector<ParamSpan>{{0, layout.trained_floats}}
                 : plan_buckets(layout, static_cast<std::size_t>(settings.bucket_mib * (1 << 20)));
  std::vector<ParamSpan> buckets;
  for (std::size_t block = 0; block < static_cast<std::size_t>(settings.blocks); ++block) {
    const std::size_t begin = block * layout.trained_floats;
    for (const ParamSpan& span : first) buckets.push_back({begin + span.begin, begin + span.end});
  }
  return buckets;
}

bool is_sum(const Task& task) { return task.kind == engine::TaskKind::collective; }

/// The step of a single rank, without sums.
void append_alone(engine::Branches& branches, StepParts parts) {
  const auto run = [&](std::vector<Task>& tasks) {
    for (Task& task : tasks) {
      if (is_sum(task)) throw std::logic_error(concat("'", task.name, "' sums over ranks, but there is one"));
      branches.run(std::move(task));
    }
  };
  run(parts.compute);
  if (parts.before_updates) branches.run(std::move(*parts.before_updates));
  for (std::vector<Task>& tasks : parts.update) run(tasks);
  for (Task& task : parts.finish) branches.run(std::move(task));
  branches.join();
}

}  // namespace

std::vector<ParamSpan> plan_buckets(const engine::ParamLayout& layout, std::size_t bucket_bytes) {
  if (bucket_bytes == 0) {
    throw Error(ErrorKind::usage, "a bucket of 0 bytes is empty; use 1 for one bucket per parameter");
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
      buckets_(plan_blocks(layout, settings, collective_->ranks())) {}

RunFingerprint AllReduceUpdate::settings() const {
  return {{"all-reduce", std::string(collective_->resolved())},
          {"wire", std::string(to_string(settings_.wire))},
          {"bucket MiB", fmt::format("{:g}", settings_.bucket_mib)}};
}

void AllReduceUpdate::allocate(std::size_t control_floats) {
  block_ = {collective_->allocate((control_floats + buckets_.back().end) * sizeof(float)), control_floats};
  if (settings_.rank_sum_floats > 0 && collective_->ranks() > 1)
    rank_sums_ = collective_->allocate(settings_.rank_sum_floats * sizeof(float));
}

/// The all-reduce of what `sum` declares.
Task AllReduceUpdate::with_work(Task sum) {
  const engine::Bytes bytes = sum.writes.front();
  if (bytes.begin < rank_sums_.data() || bytes.end() > rank_sums_.data() + rank_sums_.size())
    throw std::logic_error(concat("'", sum.name, "' sums an array outside the memory for sums over ranks"));
  const std::size_t begin = static_cast<std::size_t>(bytes.begin - rank_sums_.data()) / sizeof(float);
  const std::size_t floats = bytes.size / sizeof(float);
  Task task = collective_->all_reduce(std::move(sum.name), rank_sums().subspan(begin, floats), floats);
  task.kind = engine::TaskKind::collective;
  return task;
}

void AllReduceUpdate::append(StepProgram& program, StepParts parts, Concurrency concurrent) {
  const std::span<const ParamSpan> buckets = buckets_of(parts, buckets_, settings_.blocks);
  engine::Branches branches(program, concurrent.branches);
  if (collective_->ranks() == 1) return append_alone(branches, std::move(parts));

  std::vector<std::size_t> ready_after;
  std::vector<Task> all_reduces;
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    const std::span<float> array = block_.array_of(i, buckets[i]);
    const std::size_t last = last_user(parts.compute, array);
    ready_after.push_back(settings_.overlap && concurrent.exchange ? last : parts.compute.size() - 1);
    all_reduces.push_back(collective_->all_reduce(concat("all-reduce of bucket ", i), array,
                                                  i == 0 ? block_.control().size() : 0));
    all_reduces.back().kind = engine::TaskKind::collective;
  }

  SpanQueue queue(program, branches, std::move(ready_after), std::move(all_reduces));
  for (std::size_t i = 0; i < parts.compute.size(); ++i) {
    Task& task = parts.compute[i];
    if (is_sum(task)) {
      branches.run_on(engine::kComm, with_work(std::move(task)));
    } else {
      branches.run(std::move(task));
    }
    queue.run_ready_after(i);
  }
  const bool all_first = parts.before_updates.has_value();
  if (all_first) {
    program.wait(kCompute, queue.last());
    branches.run(std::move(*parts.before_updates));
  }
  std::vector<std::optional<engine::MarkId>> sums(buckets.size());
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    if (!all_first) sums[i] = queue.done(i);
    std::vector<Task>& tasks = parts.update[i];
    const auto sum = std::ranges::find_if(tasks, is_sum);
    if (sum == tasks.end()) continue;
    if (std::any_of(sum + 1, tasks.end(), is_sum))
      throw std::logic_error(concat("the update of span ", i, " has a second sum"));
    if (sums[i]) program.wait(kCompute, *sums[i]);
    branches.run_all({std::move_iterator(tasks.begin()), std::move_iterator(sum)});
    branches.wait(engine::kComm);
    program.run(engine::kComm, with_work(std::move(*sum)));
    sums[i] = program.set(engine::kComm);
    tasks.erase(tasks.begin(), sum + 1);
  }
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    if (sums[i]) program.wait(kCompute, *sums[i]);
    branches.run_all(std::move(parts.update[i]));
  }
  for (Task& task : parts.finish) branches.run(std::move(task));
  branches.join();
}

}  // namespace cifar_mpi::comm
