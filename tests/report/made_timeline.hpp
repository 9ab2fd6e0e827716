#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/report/timeline.hpp"

/// Timelines made up for tests, of a step with two buckets.
namespace cifar_mpi::report::made {

enum Task : std::int32_t {
  kNobody = -1,
  kControl,
  kAugment,
  kForward,
  kLoss,
  kBackward1,  ///< writes bucket 0
  kBucket0,
  kBackward2,  ///< writes bucket 1
  kBucket1,
  kUpdate0,
  kUpdate1,
  kAdvance,
};

inline std::vector<TimelineTask> tasks() {
  using engine::kComm;
  using engine::kCompute;
  using engine::TaskKind;
  return {{"control", kCompute, TaskKind::work, 0, {}},
          {"augment", kCompute, TaskKind::work, 0, {}},
          {"conv1 forward", kCompute, TaskKind::work, 0, {}},
          {"loss", kCompute, TaskKind::work, 0, {}},
          {"local3 weight gradient", kCompute, TaskKind::work, 0, {}},
          {"all-reduce of bucket 0", kComm, TaskKind::collective, 3'600'000, {kBackward1}},
          {"conv1 weight gradient", kCompute, TaskKind::work, 0, {}},
          {"all-reduce of bucket 1", kComm, TaskKind::collective, 400'000, {kBackward2}},
          {"update 0..900000", kCompute, TaskKind::work, 0, {kBucket0}},
          {"update 900000..1000000", kCompute, TaskKind::work, 0, {kBucket0, kBucket1}},
          {"advance", kCompute, TaskKind::work, 0, {kBucket0, kBucket1}}};
}

/// One rank's step: a task or a gap, and how many ms it takes.
using Line = std::vector<std::pair<std::int32_t, double>>;

inline std::int64_t ns(double ms) { return std::llround(1e6 * ms); }

/// That line from `begin_ms` on.
inline RankStep rank_step(const Line& line, double begin_ms = 0.0) {
  RankStep step;
  step.begin_ns = step.end_ns = ns(begin_ms);
  for (const auto& [task, ms] : line) {
    const std::int64_t begin = step.end_ns;
    step.end_ns += ns(ms);
    if (task != kNobody) step.slices.push_back({task, begin, step.end_ns});
  }
  return step;
}

/// Steps of lines by rank, every rank on a host of its own when `nodes`.
inline Timeline timeline(const std::vector<std::vector<Line>>& steps, bool nodes = false) {
  Timeline made;
  made.program = "train";
  made.collective = nodes ? "doubling to 64 KiB, then ring" : "window";
  made.wire = "fp32";
  made.images_per_rank = 128;
  made.tasks = tasks();
  for (std::size_t s = 0; s < steps.size(); ++s) {
    Timeline::Step& step = made.steps.emplace_back();
    step.step = 100 * s;
    for (const Line& line : steps[s]) step.ranks.push_back(rank_step(line, 1e4 * static_cast<double>(s)));
  }
  for (std::size_t r = 0; !steps.empty() && r < steps.front().size(); ++r) {
    made.hosts.push_back("node" + std::to_string(nodes ? r + 1 : 1));
    made.clock_uncertainty_ns.push_back(0);
  }
  return made;
}

}  // namespace cifar_mpi::report::made
