#include "report/losses.hpp"

#include <algorithm>
#include <numeric>

#include "report/replay.hpp"

namespace cifar_mpi::report {
namespace {

/// The mean over the ranks of the group, or over the others.
double mean(const std::vector<double>& values, const std::vector<bool>& group, bool inside) {
  double sum = 0.0;
  int count = 0;
  for (std::size_t r = 0; r < values.size(); ++r) {
    if (group[r] != inside) continue;
    sum += values[r];
    ++count;
  }
  return count == 0 ? 0.0 : sum / count;
}

/// Compares the group with the others task by task.
void compare_tasks(const Timeline& timeline, const std::vector<std::vector<double>>& ms,
                   const std::vector<bool>& group, SlowRanks& slow) {
  double alike = 0.0, all = 0.0;
  for (std::size_t t = 0; t < timeline.tasks.size(); ++t) {
    if (is_collective(timeline, static_cast<std::int32_t>(t))) continue;
    const double theirs = mean(ms[t], group, true), others = mean(ms[t], group, false);
    all += others;
    if (theirs >= (1.0 + 0.4 * slow.excess) * others) alike += others;
    if (theirs - others <= slow.task_excess_ms) continue;
    slow.task_excess_ms = theirs - others;
    slow.task = timeline.tasks[t].name;
  }
  slow.every_task = alike >= 0.8 * all;
}

/// Counts the steps in which the group is slow, and computes the share of the waiting that is for its ranks.
void note_steps(const Timeline& timeline, const SampledSteps& sampled, const std::vector<bool>& group,
                SlowRanks& slow) {
  double for_group = 0.0, all = 0.0;
  for (const SampledSteps::Step& step : sampled.steps) {
    std::vector<double> useful;
    for (const auto& stretches : step.ranks) useful.push_back(useful_ns(timeline, stretches));
    const double limit = (1.0 + 0.5 * slow.excess) * mean(useful, group, false);
    slow.steps += mean(useful, group, true) >= limit ? 1 : 0;
    const auto most = std::ranges::max_element(useful);
    const double sum = std::accumulate(useful.begin(), useful.end(), 0.0);
    const double waiting = *most * static_cast<double>(useful.size()) - sum;
    all += waiting;
    if (group[static_cast<std::size_t>(most - useful.begin())]) for_group += waiting;
  }
  slow.share_of_waiting = all > 0.0 ? for_group / all : 0.0;
}

}  // namespace

Losses losses_of(const Timeline& timeline, const SampledSteps& sampled) {
  Losses losses;
  if (sampled.steps.empty()) return losses;
  const Usage usage = usage_of(timeline, sampled);
  const double ms = ms_of_a_step(sampled);
  const double without_gaps =
      std::clamp(replay_ns(timeline, sampled, {.gaps = false}), usage.useful_most, usage.ideal);
  const double each = std::min(usage.useful_most_each, without_gaps);
  losses.step = ms * usage.time;
  losses.useful = ms * usage.useful_sum / static_cast<double>(sampled.ranks.size());
  losses.imbalance = ms * usage.useful_most - losses.useful;
  losses.wander = ms * (each - usage.useful_most);
  losses.order = ms * (without_gaps - each);
  losses.host = ms * (usage.ideal - without_gaps);
  losses.transfer = ms * (usage.time - usage.ideal);
  return losses;
}

SlowRanks slow_ranks(const Timeline& timeline, const SampledSteps& sampled) {
  SlowRanks slow;
  const auto ms = task_ms(timeline, sampled);
  std::vector<double> useful(sampled.ranks.size(), 0.0);
  if (useful.size() < 2) return slow;
  for (std::size_t t = 0; t < ms.size(); ++t) {
    if (is_collective(timeline, static_cast<std::int32_t>(t))) continue;
    for (std::size_t r = 0; r < useful.size(); ++r) useful[r] += ms[t][r];
  }
  std::vector<double> sorted = useful;
  std::ranges::sort(sorted);
  slow.least_ms = sorted.front();
  slow.most_ms = sorted.back();
  const double limit = 0.5 * (sorted[(sorted.size() - 1) / 2] + sorted.back());
  std::vector<bool> group;
  for (const double value : useful) group.push_back(value > limit);
  const auto count = static_cast<std::size_t>(std::ranges::count(group, true));
  if (count == 0) return slow;
  slow.others_ms = mean(useful, group, false);
  slow.excess = slow.others_ms > 0.0 ? mean(useful, group, true) / slow.others_ms - 1.0 : 0.0;
  note_steps(timeline, sampled, group, slow);
  for (std::size_t r = 0; r < group.size(); ++r) {
    if (group[r]) slow.ranks.push_back(sampled.ranks[r]);
  }
  compare_tasks(timeline, ms, group, slow);
  return slow;
}

LostCores lost_cores(const Timeline& timeline, const SampledSteps& sampled) {
  LostCores most;
  if (timeline.program.ends_with(kSlept)) return most;
  for (std::size_t r = 0; r < sampled.ranks.size(); ++r) {
    double ms = 0.0;
    for (const SampledSteps::Step& step : sampled.steps) {
      if (step.work_cpu_ns[r] < 0) return {};
      const double lost = useful_ns(timeline, step.ranks[r]) - static_cast<double>(step.work_cpu_ns[r]);
      ms += ms_of_a_step(sampled) * std::max(lost, 0.0);
    }
    if (ms > most.ms) most = {sampled.ranks[r], ms};
  }
  return most;
}

std::vector<NetworkWait> network_waits(const Timeline& timeline, const SampledSteps& sampled) {
  std::vector<NetworkWait> waits;
  std::vector<double> ms(timeline.tasks.size(), 0.0);
  for (const SampledSteps::Step& step : sampled.steps) {
    for (const auto& stretches : step.ranks) {
      for (const Stretch& stretch : stretches) {
        if (stretch.task == Stretch::kNobody || !is_collective(timeline, stretch.task)) continue;
        const auto task = static_cast<std::size_t>(stretch.task);
        const std::int64_t from = std::max(stretch.begin_ns, step.ready_ns[task]);
        ms[task] += ms_of_a_step(sampled) / static_cast<double>(step.ranks.size()) *
                    static_cast<double>(std::max<std::int64_t>(stretch.end_ns - from, 0));
      }
    }
  }
  for (std::size_t t = 0; t < ms.size(); ++t) {
    if (ms[t] > 0.0) waits.push_back({static_cast<std::int32_t>(t), ms[t]});
  }
  std::ranges::stable_sort(waits, std::ranges::greater(), &NetworkWait::ms);
  return waits;
}

std::vector<int> times_slowest(const Timeline& timeline, const SampledSteps& sampled) {
  std::vector<int> times(sampled.ranks.size(), 0);
  for (const SampledSteps::Step& step : sampled.steps) {
    std::vector<double> useful;
    for (const auto& stretches : step.ranks) useful.push_back(useful_ns(timeline, stretches));
    ++times[static_cast<std::size_t>(std::ranges::max_element(useful) - useful.begin())];
  }
  return times;
}

WhatIf what_if(const Timeline& timeline, const SampledSteps& sampled) {
  WhatIf result;
  if (sampled.steps.empty()) return result;
  const std::vector<Section> sections = sections_of(timeline);
  const auto with_batch = [&](std::size_t, std::int32_t task) {
    const Section section = sections[static_cast<std::size_t>(task)];
    return section == Section::update || section == Section::other ? 1.0 : 2.0;
  };
  const auto ms = [&](const Replay& replay) {
    return ms_of_a_step(sampled) * replay_ns(timeline, sampled, replay);
  };
  result.now = ms({.transfer = 1.0});
  result.half_wire = ms({.transfer = 0.5});
  result.twice_batch = ms({.transfer = 1.0, .work = with_batch});
  result.twice_batch_ideal = ms({.transfer = 0.0, .work = with_batch});
  return result;
}

std::vector<double> between_steps_ms(const SampledSteps& sampled) {
  std::vector<double> ms(sampled.ranks.size(), 0.0);
  for (const SampledSteps::Step& step : sampled.steps) {
    for (std::size_t r = 0; r < step.ranks.size(); ++r) {
      if (!step.ranks[r].empty() && step.ranks[r].back().task == Stretch::kNobody)
        ms[r] += ms_of_a_step(sampled) * step.ranks[r].back().ns();
    }
  }
  return ms;
}

double share_between_steps(const SampledSteps& sampled) {
  const std::vector<double> ms = between_steps_ms(sampled);
  const double between = std::accumulate(ms.begin(), ms.end(), 0.0);
  double all = 0.0;
  for (const SampledSteps::Step& step : sampled.steps) {
    for (const auto& stretches : step.ranks) {
      for (const Stretch& stretch : stretches)
        all += stretch.task == Stretch::kNobody ? ms_of_a_step(sampled) * stretch.ns() : 0.0;
    }
  }
  return all > 0.0 ? between / all : 0.0;
}

}  // namespace cifar_mpi::report
