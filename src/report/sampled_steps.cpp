#include "report/sampled_steps.hpp"

#include <algorithm>
#include <map>

namespace cifar_mpi::report {
namespace {

bool known(const Timeline& timeline, std::int32_t task) {
  return task >= 0 && static_cast<std::size_t>(task) < timeline.tasks.size();
}

const TimelineTask& task_of(const Timeline& timeline, std::int32_t task) {
  return timeline.tasks[static_cast<std::size_t>(task)];
}

/// The slices of one kind, cut to the step, without those of invalid tasks; sorted by beginning.
std::vector<Stretch> slices_of(const Timeline& timeline, const RankStep& step, engine::TaskKind kind) {
  std::vector<Stretch> slices;
  for (const Slice& slice : step.slices) {
    if (!known(timeline, slice.task) || task_of(timeline, slice.task).kind != kind) continue;
    const std::int64_t last = std::max(step.begin_ns, step.end_ns);
    const std::int64_t begin = std::clamp(slice.begin_ns, step.begin_ns, last);
    slices.push_back({slice.task, begin, std::clamp(slice.end_ns, begin, last), false});
  }
  const auto earlier = [](const Stretch& a, const Stretch& b) { return a.begin_ns < b.begin_ns; };
  if (!std::ranges::is_sorted(slices, earlier)) std::ranges::stable_sort(slices, earlier);
  return slices;
}

/// Assigns each moment to the slice that began first; covered slices keep no length.
void cut_overlaps(std::vector<Stretch>& slices) {
  std::int64_t covered = slices.empty() ? 0 : slices.front().begin_ns;
  for (Stretch& slice : slices) {
    slice.begin_ns = std::max(slice.begin_ns, covered);
    slice.end_ns = std::max(slice.end_ns, slice.begin_ns);
    covered = slice.end_ns;
  }
}

/// Adds the parts of [begin, end) that belong to collectives, and the rest as time without a task. `next`
/// advances through the collectives.
void fill(std::vector<Stretch>& walk, const std::vector<Stretch>& collectives, std::size_t& next,
          std::int64_t begin, std::int64_t end) {
  while (begin < end) {
    while (next < collectives.size() && collectives[next].end_ns <= begin) ++next;
    const bool any = next < collectives.size() && collectives[next].begin_ns < end;
    const std::int64_t from = any ? std::max(collectives[next].begin_ns, begin) : end;
    if (from > begin) walk.push_back({Stretch::kNobody, begin, from, false});
    if (!any) return;
    begin = std::min(collectives[next].end_ns, end);
    walk.push_back({collectives[next].task, from, begin, false});
  }
}

/// By task: whether it waits for collectives.
std::vector<bool> waiting_tasks(const Timeline& timeline) {
  std::vector<bool> waits(timeline.tasks.size());
  for (std::size_t t = 0; t < waits.size(); ++t)
    waits[t] = !predecessors(timeline, static_cast<std::int32_t>(t), true).empty();
  return waits;
}

/// Finds the first stretch of each work task, and the stretches of collectives in which the rank only waits.
void mark_waiting(const Timeline& timeline, const std::vector<bool>& waits, std::vector<Stretch>& walk) {
  std::vector<std::size_t> first(timeline.tasks.size(), walk.size());
  for (std::size_t i = walk.size(); i-- > 0;) {
    if (walk[i].task != Stretch::kNobody) first[static_cast<std::size_t>(walk[i].task)] = i;
  }
  bool waiting = true;
  for (std::size_t i = walk.size(); i-- > 0;) {
    Stretch& stretch = walk[i];
    if (stretch.task == Stretch::kNobody) continue;
    const auto task = static_cast<std::size_t>(stretch.task);
    if (is_collective(timeline, stretch.task)) {
      stretch.waited_for = waiting;
    } else {
      stretch.begins = first[task] == i;
      waiting = waits[task] && stretch.begins;
    }
  }
}

std::vector<Stretch> walk_of(const Timeline& timeline, const std::vector<bool>& waits, const RankStep& step) {
  std::vector<Stretch> work = slices_of(timeline, step, engine::TaskKind::work);
  std::vector<Stretch> collectives = slices_of(timeline, step, engine::TaskKind::collective);
  cut_overlaps(work);
  cut_overlaps(collectives);
  std::vector<Stretch> walk;
  walk.reserve(step.slices.size() + 8);
  std::int64_t at = step.begin_ns;
  std::size_t next = 0;
  for (const Stretch& task : work) {
    fill(walk, collectives, next, at, task.begin_ns);
    walk.push_back(task);
    at = task.end_ns;
  }
  fill(walk, collectives, next, at, std::max(step.begin_ns, step.end_ns));
  mark_waiting(timeline, waits, walk);
  return walk;
}

/// When each task ended on a rank; the step's beginning if the task was not recorded.
std::vector<std::int64_t> ends_of(const Timeline& timeline, const RankStep& step) {
  std::vector<std::int64_t> ends(timeline.tasks.size(), step.begin_ns);
  for (const Slice& slice : step.slices) {
    if (!known(timeline, slice.task)) continue;
    std::int64_t& end = ends[static_cast<std::size_t>(slice.task)];
    end = std::max(end, slice.end_ns);
  }
  return ends;
}

void note_transfers(const Timeline& timeline, const std::vector<const RankStep*>& ranks,
                    SampledSteps::Step& step) {
  std::vector<std::vector<std::int64_t>> ends;
  for (const RankStep* const rank : ranks) ends.push_back(ends_of(timeline, *rank));
  step.ready_ns.assign(timeline.tasks.size(), 0);
  step.transfer_ns.assign(ranks.size(), std::vector<double>(timeline.tasks.size(), 0.0));
  for (const CollectiveOrder& collective : collectives_of(timeline)) {
    std::vector<std::int32_t> after = predecessors(timeline, collective.task, false);
    if (collective.before >= 0) after.push_back(collective.before);
    const auto task = static_cast<std::size_t>(collective.task);
    std::int64_t ready = ranks.front()->begin_ns;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      ready = std::max(ready, ranks[r]->begin_ns);
      for (const std::int32_t before : after)
        ready = std::max(ready, ends[r][static_cast<std::size_t>(before)]);
    }
    step.ready_ns[task] = ready;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      ends[r][task] = std::max(ends[r][task], ready);  // a task that took no time may not have been recorded
      step.transfer_ns[r][task] = static_cast<double>(ends[r][task] - ready);
    }
  }
}

/// Whether the step was recorded completely on the rank.
bool seen(const Timeline::Step& step, int rank) {
  const auto r = static_cast<std::size_t>(rank);
  return r < step.ranks.size() && !step.ranks[r].slices.empty() && step.ranks[r].dropped == 0;
}

}  // namespace

bool is_collective(const Timeline& timeline, std::int32_t task) {
  return known(timeline, task) && task_of(timeline, task).kind == engine::TaskKind::collective;
}

std::vector<std::int32_t> predecessors(const Timeline& timeline, std::int32_t task, bool collectives) {
  std::vector<std::int32_t> found;
  for (const std::int32_t before : task_of(timeline, task).after) {
    if (known(timeline, before) && is_collective(timeline, before) == collectives) found.push_back(before);
  }
  return found;
}

std::vector<CollectiveOrder> collectives_of(const Timeline& timeline) {
  std::vector<CollectiveOrder> order;
  std::map<engine::LaneId, std::int32_t> last;
  for (std::size_t t = 0; t < timeline.tasks.size(); ++t) {
    const auto task = static_cast<std::int32_t>(t);
    if (!is_collective(timeline, task)) continue;
    const auto [place, first] = last.try_emplace(timeline.tasks[t].lane, task);
    order.push_back({task, first ? -1 : place->second});
    place->second = task;
  }
  return order;
}

SampledSteps sampled_steps(const Timeline& timeline) {
  SampledSteps sampled;
  std::size_t world = timeline.hosts.size();
  for (const Timeline::Step& step : timeline.steps) world = std::max(world, step.ranks.size());
  for (int rank = 0; rank < static_cast<int>(world); ++rank) {
    const bool any =
        std::ranges::any_of(timeline.steps, [&](const Timeline::Step& step) { return seen(step, rank); });
    (any ? sampled.ranks : sampled.missing).push_back(rank);
  }
  if (sampled.ranks.empty()) return sampled;
  const std::vector<bool> waits = waiting_tasks(timeline);
  for (const Timeline::Step& step : timeline.steps) {
    if (!std::ranges::all_of(sampled.ranks, [&](int rank) { return seen(step, rank); })) {
      ++sampled.left_out;
      continue;
    }
    std::vector<const RankStep*> ranks;
    for (const int rank : sampled.ranks) ranks.push_back(&step.ranks[static_cast<std::size_t>(rank)]);
    SampledSteps::Step& own = sampled.steps.emplace_back();
    for (const RankStep* const rank : ranks) {
      own.ranks.push_back(walk_of(timeline, waits, *rank));
      own.work_cpu_ns.push_back(rank->work_cpu_ns);
    }
    note_transfers(timeline, ranks, own);
  }
  return sampled;
}

double ms_of_a_step(const SampledSteps& sampled) {
  return 1e-6 / static_cast<double>(std::max<std::size_t>(sampled.steps.size(), 1));
}

std::vector<std::vector<double>> task_ms(const Timeline& timeline, const SampledSteps& sampled) {
  std::vector<std::vector<double>> ms(timeline.tasks.size(), std::vector<double>(sampled.ranks.size()));
  for (const SampledSteps::Step& step : sampled.steps) {
    for (std::size_t r = 0; r < step.ranks.size(); ++r) {
      for (const Stretch& stretch : step.ranks[r]) {
        if (stretch.task != Stretch::kNobody)
          ms[static_cast<std::size_t>(stretch.task)][r] += ms_of_a_step(sampled) * stretch.ns();
      }
    }
  }
  return ms;
}

}  // namespace cifar_mpi::report
